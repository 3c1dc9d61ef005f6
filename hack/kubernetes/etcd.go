package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// runEtcd serves one etcd member. etcd's own main lives in a module that does not fit beside Kubernetes', so its embedding
// package is used, with the few flags the test bed needs.
func runEtcd() int {
	config, err := etcdConfig(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 2
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	defer server.Close()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	select {
	case <-stop:
		return 0
	case err := <-server.Err():
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
}

func etcdConfig(args []string) (*embed.Config, error) {
	config := embed.NewConfig()
	config.LogLevel = "warn"
	config.QuotaBackendBytes = 4 << 30 // 5,000 nodes and 10,000 pods need more than etcd's 2 GiB after a few runs

	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	flags.StringVar(&config.Dir, "data-dir", "", "where the data lives")
	flags.BoolVar(&config.UnsafeNoFsync, "unsafe-no-fsync", false, "trade durability for speed")
	clients := flags.String("listen-client-url", "http://127.0.0.1:2379", "address for clients")
	peers := flags.String("listen-peer-url", "http://127.0.0.1:2380", "address for peers")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	client, err := url.Parse(*clients)
	if err != nil {
		return nil, err
	}
	peer, err := url.Parse(*peers)
	if err != nil {
		return nil, err
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	return config, nil
}
