package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/template"
)

// runCoreDNS serves cluster DNS with the plugins a plain cluster uses; importing CoreDNS' own list of plugins would pull in
// three clouds' SDKs. The order is that of CoreDNS' plugin.cfg: it decides which plugin sees a query first.
func runCoreDNS() int {
	dnsserver.Directives = []string{"reload", "bind", "health", "ready", "errors", "log", "cache", "template", "loop", "kubernetes"}
	coremain.Run()
	return 0
}
