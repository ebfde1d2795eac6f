// Command pause is the sandbox container of the lab's pods: it does nothing until it is told to end. Build it with
// CGO_ENABLED=0 and put it alone into an image; the kubelet's runtime starts it as process 1 of the pod.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
