// Command cluster is a real Kubernetes control plane in one binary, for tests on one machine.
//
// It holds four servers and starts the one that is named first, each as a process of its own, so that a test can
// kill, stop and restart any of them:
//
//	cluster etcd --dir DIR --client-port N --peer-port N
//	cluster kube-apiserver FLAGS…           (Kubernetes' own flags)
//	cluster kube-controller-manager FLAGS…
//	cluster kube-scheduler FLAGS…
//
// Two more print manifests, by the libraries of the tools that people install with:
//
//	cluster helm-template CHART NAMESPACE [VALUES.yaml]
//	cluster kustomize-build FOLDER
//
// Nothing here is a mock: the three Kubernetes programs are the upstream commands, and etcd is the upstream server.
// It promises nothing for production: one etcd member, fsync off.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) < 2 {
		fail(errors.New("name one of etcd, kube-apiserver, kube-controller-manager, kube-scheduler, helm-template, kustomize-build"))
	}
	name, arguments := os.Args[1], os.Args[2:]
	own := map[string]func([]string) error{
		"etcd":            runEtcd,
		"helm-template":   printChart,
		"kustomize-build": printKustomization,
	}
	if run, ours := own[name]; ours {
		if err := run(arguments); err != nil {
			fail(err)
		}
		return
	}
	build, known := commands[name]
	if !known {
		fail(fmt.Errorf("no program %q here; run without arguments for the list", name))
	}
	command := build()
	command.SetArgs(arguments)
	os.Exit(cli.Run(command))
}

// runEtcd serves one member on loopback until SIGTERM or SIGINT.
func runEtcd(arguments []string) error {
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	directory := flags.String("dir", "", "folder of its data")
	clientPort := flags.Int("client-port", 0, "port that the API server dials")
	peerPort := flags.Int("peer-port", 0, "port of the (absent) peers")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *directory == "" || *clientPort == 0 || *peerPort == 0 {
		return errors.New("etcd needs --dir, --client-port and --peer-port")
	}
	config := embed.NewConfig()
	config.Dir = filepath.Join(*directory, "member")
	config.LogLevel = "warn"
	// A test's cluster does not survive a power cut; waiting for the disk would only slow it.
	config.UnsafeNoFsync = true
	client := loopback(*clientPort)
	peer := loopback(*peerPort)
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		return errors.New("etcd was not ready within a minute")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
		return nil
	case err := <-server.Err():
		return fmt.Errorf("serve etcd: %w", err)
	}
}

// printChart renders a chart as `helm template` does, checking values against the chart's schema.
func printChart(arguments []string) error {
	if len(arguments) < 2 || len(arguments) > 3 {
		return errors.New("helm-template needs a chart, a namespace and perhaps a file of values")
	}
	values := chartutil.Values{}
	if len(arguments) == 3 {
		given, err := chartutil.ReadValuesFile(arguments[2])
		if err != nil {
			return fmt.Errorf("read values: %w", err)
		}
		values = given
	}
	chart, err := loader.LoadDir(arguments[0])
	if err != nil {
		return fmt.Errorf("load chart: %w", err)
	}
	options := chartutil.ReleaseOptions{Name: "forecrest", Namespace: arguments[1], IsInstall: true, Revision: 1}
	merged, err := chartutil.ToRenderValues(chart, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return fmt.Errorf("values: %w", err)
	}
	rendered, err := engine.Render(chart, merged)
	if err != nil {
		return fmt.Errorf("render: %w", err)
	}
	names := make([]string, 0, len(rendered))
	for name := range rendered {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(rendered[name]) != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", name, rendered[name])
		}
	}
	return nil
}

// printKustomization builds a folder as `kustomize build` does.
func printKustomization(arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("kustomize-build needs one folder")
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), arguments[0])
	if err != nil {
		return fmt.Errorf("build: %w", err)
	}
	text, err := built.AsYaml()
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	_, err = os.Stdout.Write(text)
	return err
}

func loopback(port int) []url.URL {
	return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cluster:", err)
	os.Exit(2)
}
