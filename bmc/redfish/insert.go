package redfish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	// settleTries is how often a drive is looked at after a change, settlePause the time between: a BMC may still be
	// ejecting, or mounting, when it has answered.
	settleTries = 5
	settlePause = time.Second
)

// Insert implements bmc.Machine. An image that is in the slot is ejected first, also when it is the same: iDRACs show an
// image that they have lost. nil means that the drive shows the image.
func (m *machine) Insert(ctx context.Context, slot, image string) error {
	op := "inserting virtual media into " + slot
	leave, err := m.enter(ctx, op)
	if err != nil {
		return err
	}
	defer leave()
	protocol, err := m.checkImage(op, image)
	if err != nil {
		return err
	}
	target, err := m.findDrive(op, slot)
	if err != nil {
		return err
	}
	if !target.takes() {
		return m.fail(bmc.Unsupported, op, "the BMC lets no image be inserted there; use another slot")
	}
	if target.holds() {
		if err := m.empty(op, target); err != nil {
			return err
		}
	}
	if err := m.insertInto(op, target, image, protocol); err != nil {
		return m.classify(op, true, err)
	}

	return m.confirm(op, target, image)
}

var errNoImage = errors.New("no URL of an image")

// checkImage refuses what no BMC should get, without quoting it. It gives the TransferProtocolType.
func (m *machine) checkImage(op, image string) (protocol string, err error) {
	parsed, err := url.Parse(image)
	if err == nil && (parsed.Host == "" || parsed.Path == "") {
		err = errNoImage
	}
	if err != nil {
		return "", m.fail(bmc.Unsupported, op, "the image is not given as a URL with host and path; use http://HOST/IMAGE.iso")
	}
	if parsed.User != nil {
		return "", m.fail(bmc.Unsupported, op,
			"the image's URL holds a user name or password, which BMCs show and log; serve the image without them")
	}
	protocol = strings.ToUpper(parsed.Scheme)
	switch protocol {
	case "HTTP", "HTTPS", "NFS", "CIFS", "FTP", "SFTP", "SCP", "TFTP":
		return protocol, nil
	case "SMB":
		return "CIFS", nil
	default:
		return "", m.fail(bmc.Unsupported, op, fmt.Sprintf("BMCs do not fetch images by %q; use http or https", parsed.Scheme))
	}
}

// empty ejects what is in a drive, and looks until that is seen. A BMC that refuses, or goes on showing the image, may
// have lost it: the insert tells.
func (m *machine) empty(op string, target drive) error {
	err := m.eject(op, target)
	switch bmc.KindOf(err) {
	case "":
	case bmc.Conflict, bmc.Unsupported:
		return nil
	default:
		return err
	}
	_, err = m.settle(op, target, func(now drive) bool { return !now.holds() })

	return err
}

// settle looks at a drive, some times, until it is as it shall be. What is done with it has been accepted before, so
// that a failure leaves open what came of it.
func (m *machine) settle(op string, target drive, settled func(drive) bool) (bool, error) {
	var err error
	for try := range settleTries {
		if try > 0 {
			err = m.wait(m.transport.current.ctx, settlePause)
		}
		var now drive
		if err == nil {
			now, err = m.readDrive(target.path)
		}
		switch {
		case err != nil:
			return false, &bmc.Error{
				Kind: bmc.Unknown, Op: m.redact(op), BMC: m.options.Address.HostPort(), Err: fixedCause(err),
				Detail: m.redact("the BMC accepted it, and the drive was not seen to follow: " + err.Error() +
					"; look at it before anything else"),
			}
		case settled(now):
			return true, nil
		}
	}

	return false, nil
}

// insertInto tries the forms of body until one is not refused as a form: some BMCs (Supermicro's X11, X12) refuse
// WriteProtected and Inserted, and some want parameters that others refuse.
func (m *machine) insertInto(op string, target drive, image, protocol string) error {
	bodies := []map[string]any{
		{"Image": image, "Inserted": true, "WriteProtected": true},
		{"Image": image, "Inserted": true},
		{"Image": image},
	}
	var first error
	wanted := map[string]any{}
	for i := 0; i < len(bodies); {
		body := maps.Clone(bodies[i])
		maps.Copy(body, wanted)
		err := m.change(op, target, target.Actions.Insert.Target, body)
		if !refused(err) {
			return err
		}
		if first == nil {
			first = err
		}
		if !addMissing(wanted, err, protocol) {
			i++
		}
	}

	return first
}

// addMissing adds to the wanted parameters those that a refusal says are missing. Some BMCs want a user name and password
// for images that need none (sushy, release note vmedia-blank-auth): what they get is no secret.
func addMissing(wanted map[string]any, err error, protocol string) (added bool) {
	if !says(err, "ActionParameterMissing", "PropertyMissing") {
		return false
	}
	for name, value := range map[string]string{"TransferProtocolType": protocol, "UserName": "none", "Password": "none"} {
		if _, has := wanted[name]; !has && mentions(err, name) {
			wanted[name], added = value, true
		}
	}

	return added
}

// change does something with a drive: by the action where there is one, else by changing the resource.
func (m *machine) change(op string, target drive, action string, body map[string]any) error {
	if action != "" {
		return m.act(request{op: op, method: http.MethodPost, uri: action, body: body})
	}

	return m.patch(op, target.path, target.etag, body)
}

// confirm looks until the drive shows the image. BMCs that hide the URL are believed.
func (m *machine) confirm(op string, target drive, image string) error {
	shown, err := m.settle(op, target, func(now drive) bool {
		return now.holds() && (now.Image == "" || sameImage(now.Image, image))
	})
	if err == nil && !shown {
		err = m.fail(bmc.Unknown, op, "the BMC accepted the image, and its drive does not show it; "+
			"look at the drive, and whether the BMC can reach the image's server")
	}

	return err
}

// sameImage compares what a BMC shows with what was inserted. Some show the file's name only.
func sameImage(shown, image string) bool {
	return shown == image || withoutUser(shown) == withoutUser(image) ||
		!strings.Contains(shown, "/") && shown == path.Base(withoutQuery(image))
}

func withoutQuery(image string) string {
	before, _, _ := strings.Cut(image, "?")

	return before
}

// Eject implements bmc.Machine.
func (m *machine) Eject(ctx context.Context, slot string) error {
	op := "ejecting virtual media from " + slot
	leave, err := m.enter(ctx, op)
	if err != nil {
		return err
	}
	defer leave()
	target, err := m.findDrive(op, slot)
	if err != nil {
		return err
	}
	if !target.holds() {
		return nil
	}

	return m.eject(op, target)
}

func (m *machine) eject(op string, target drive) error {
	// HPE's iLO wants a body with the action, and PATCH has its own.
	body := map[string]any{}
	if target.Actions.Eject.Target == "" {
		body = map[string]any{"Image": nil, "Inserted": false}
	}
	if err := m.change(op, target, target.Actions.Eject.Target, body); err != nil {
		return m.classify(op, true, err)
	}

	return nil
}
