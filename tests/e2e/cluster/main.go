// Command cluster is a real Kubernetes control plane in one binary, for tests on one machine.
//
// It holds four programs and starts the one that is named first, each as a process of its own, so that a test can
// kill, stop and restart any of them:
//
//	cluster etcd --dir DIR --client-port N --peer-port N
//	cluster kube-apiserver FLAGS…           (Kubernetes' own flags)
//	cluster kube-controller-manager FLAGS…
//	cluster kube-scheduler FLAGS…
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
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) < 2 {
		fail(errors.New("name one of etcd, kube-apiserver, kube-controller-manager, kube-scheduler"))
	}
	name, arguments := os.Args[1], os.Args[2:]
	if name == "etcd" {
		if err := runEtcd(arguments); err != nil {
			fail(err)
		}
		return
	}
	build, known := commands[name]
	if !known {
		fail(fmt.Errorf("no program %q here: etcd, kube-apiserver, kube-controller-manager or kube-scheduler", name))
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

func loopback(port int) []url.URL {
	return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cluster:", err)
	os.Exit(2)
}
