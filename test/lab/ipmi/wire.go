package ipmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

const (
	startTimeout = 20 * time.Second
	// startPoll is how long an answer is waited for before it is asked again.
	startPoll = 100 * time.Millisecond
)

// knock is Get Channel Authentication Capabilities, which every BMC answers without a session (IPMI 2.0, 13.14 and
// 22.13): RMCP header, IPMI 1.5 session header, message of 9 bytes for this channel and ADMINISTRATOR.
func knock() []byte {
	return []byte{
		0x06, 0x00, 0xff, 0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x09, 0x20, 0x18, 0xc8, 0x81, 0x00, 0x38, 0x8e, 0x04, 0xb5,
	}
}

// waitReady knocks until the BMC answers.
func (b *BMC) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "udp4", fmt.Sprintf("127.0.0.1:%d", b.port))
	if err != nil {
		return fmt.Errorf("knocking: %w", err)
	}
	defer connection.Close()
	retry := time.NewTicker(startPoll)
	defer retry.Stop()
	answer := make([]byte, 512)
	for {
		// Refused while nobody listens yet.
		_, _ = connection.Write(knock())
		if err := connection.SetReadDeadline(time.Now().Add(startPoll)); err != nil {
			return fmt.Errorf("knocking: %w", err)
		}
		if _, err := connection.Read(answer); err == nil {
			return nil
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			select {
			case <-retry.C:
			case <-b.ended:
				return errEnded
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for its first answer: %w", ctx.Err())
		}
	}
}

func freePort() (int, error) {
	connection, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, fmt.Errorf("finding a free UDP port: %w", err)
	}
	address, err := net.ResolveUDPAddr("udp4", connection.LocalAddr().String())
	if err := errors.Join(err, connection.Close()); err != nil {
		return 0, fmt.Errorf("finding a free UDP port: %w", err)
	}

	return address.Port, nil
}

// fruData is a FRU (IPMI Platform Management FRU Information Storage Definition, 8 and 12) with a product area, as
// ipmi_sim takes it: its size, "data", its bytes.
func fruData() string {
	const (
		unit     = 8    // areas are multiples of it
		asciiLen = 0xc0 // 8-bit ASCII, with the length in the lower bits
		noMore   = 0xc1
	)
	area := []byte{0x01, 0, 0}
	for _, value := range []string{ProductManufacturer, ProductName, "part", "1", ProductSerial, "", ""} {
		area = append(area, asciiLen|byte(len(value))) //nolint:gosec // the values are ours, and short
		area = append(area, value...)
	}
	area = append(area, noMore)
	for len(area)%unit != unit-1 {
		area = append(area, 0)
	}
	area[1] = byte((len(area) + 1) / unit) //nolint:gosec // as above
	data := append(withSum([]byte{0x01, 0, 0, 0, 1, 0, 0}), withSum(area)...)
	var text strings.Builder
	fmt.Fprintf(&text, "%d data", len(data))
	for _, each := range data {
		fmt.Fprintf(&text, " 0x%02x", each)
	}

	return text.String()
}

// withSum appends the byte that makes the sum zero.
func withSum(data []byte) []byte {
	var sum byte
	for _, each := range data {
		sum += each
	}

	return append(data, -sum)
}
