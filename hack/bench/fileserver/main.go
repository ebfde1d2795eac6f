// Command fileserver serves a folder over HTTPS on a free port of 127.0.0.1 until it is stopped, and prints its address.
// others.sh uses it: Python's http.server closes the connection after each file, and casync fetches thousands.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

var errUsage = errors.New("usage: fileserver FOLDER CERTIFICATE KEY")

func main() {
	if err := serve(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// serve returns only with an error.
func serve(ctx context.Context, arguments []string) error {
	if len(arguments) != 3 {
		return errUsage
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("opening a port: %w", err)
	}

	fmt.Println(listener.Addr())

	server := &http.Server{
		Handler: http.FileServer(http.Dir(arguments[0])), ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols),
	}
	// One file at a time gains nothing from HTTP/2, and Go sends it more slowly.
	server.Protocols.SetHTTP1(true)

	return server.ServeTLS(listener, arguments[1], arguments[2])
}
