package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stayput-dev/stayput/osimage"
)

// transferFlags say by which ways, and how fast, images come and go.
type transferFlags struct {
	hostsDir, proxy, limitRate string
}

func (f *transferFlags) addTransfer(flags *pflag.FlagSet) {
	flags.StringVar(&f.hostsDir, "hosts-dir", "",
		"`FOLDER` with containerd's hosts.toml files, such as /etc/containerd/certs.d: mirrors are asked first")
	flags.StringVar(&f.proxy, "proxy", "",
		"proxy `URL`, http://host:port or socks5://host:port (default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY)")
	flags.StringVar(&f.limitRate, "limit-rate", "",
		"`BYTES` a second that all transfers together may receive, and send, such as 20M or 20Mi")
}

func (f *transferFlags) transferOptions(cmd *cobra.Command) ([]osimage.Option, error) {
	limit, err := parseRate(f.limitRate)
	if err != nil {
		return nil, err
	}

	return []osimage.Option{
		osimage.WithHostsDir(f.hostsDir), osimage.WithProxy(f.proxy), osimage.WithRateLimit(limit),
		osimage.WithHostsWarning(func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", text) }),
		osimage.WithRetryNotice(func(cause error, pause time.Duration) {
			if pause == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "Trying the next host: %v\n", withoutFix(cause))
			} else {
				fmt.Fprintf(cmd.ErrOrStderr(), "Trying again in %s: %v\n", pause.Round(time.Second), withoutFix(cause))
			}
		}),
	}, nil
}

// parseRate reads a number of bytes a second, 0 where there is no limit.
func parseRate(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}

	rate, ok := bytesIn(text)
	if !ok || rate <= 0 {
		return 0, mistake(fmt.Sprintf("--limit-rate %q", text), "it is not a number of bytes a second", "use one such as 20M or 500Ki")
	}

	return rate, nil
}
