// One program that holds every Kubernetes component the test bed runs. The component is chosen by the name the program
// is called by (a link named kubectl is kubectl), or else by its first argument.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs and kubectl must not depend on the machine's time zone files.

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest client metrics, read by the benches
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// component runs one program to its end and returns its exit code; os.Args is already that program's own.
type component func() int

func components() map[string]component {
	return map[string]component{
		"etcd":                    runEtcd,
		"coredns":                 runCoreDNS,
		"kubectl":                 runKubectl,
		"kube-apiserver":          func() int { return run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() int { return run(controllermanager.NewControllerManagerCommand()) },
		"kube-scheduler":          func() int { return run(scheduler.NewSchedulerCommand()) },
		"kube-proxy":              func() int { return run(proxy.NewProxyCommand()) },
		"kubelet":                 func() int { return run(kubelet.NewKubeletCommand(context.Background())) },
	}
}

func run(command *cobra.Command) int { return cli.Run(command) }

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints in kubectl's own words and exits
	}
	return 0
}

func main() {
	known := components()
	if start, ok := known[filepath.Base(os.Args[0])]; ok {
		os.Exit(start())
	}
	if len(os.Args) > 1 {
		if start, ok := known[os.Args[1]]; ok {
			os.Args = os.Args[1:]
			os.Exit(start())
		}
	}
	names := slices.Sorted(maps.Keys(known))
	fmt.Fprintf(os.Stderr, "usage: %s COMPONENT [flags]\ncomponents: %s\n", filepath.Base(os.Args[0]), strings.Join(names, " "))
	os.Exit(2)
}
