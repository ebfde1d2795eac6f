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
	// insertTries is how often an image is offered to a BMC that is not done with an eject: as often as Ironic does it,
	// with the looks at the drive, some seconds, in between.
	insertTries = 4
)

// Insert implements bmc.Machine. An image that is in the slot is ejected first, also when it is the same: iDRACs show an
// image that they have lost. nil means that the drive shows the image. An answer that leaves open whether the BMC
// inserted is followed by looks at the drive, so that the error is of kind Unknown only where those tell nothing.
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
	// To see the image proves an insert only where it was not seen before.
	tells := true
	if target.holds() {
		emptied, err := m.empty(op, &target)
		if err != nil {
			return err
		}
		tells = emptied || target.Image != "" && !sameImage(target.Image, image)
	}

	return m.offer(op, target, image, protocol, tells)
}

// offer inserts an image. A BMC that is still ejecting refuses, with whatever error (storyboard 2008504), so that one
// that has refused, and whose drive was looked at for a while without showing the image, is offered it again. tells says
// whether the drive can be trusted about that.
func (m *machine) offer(op string, target drive, image, protocol string, tells bool) error {
	for try := 1; ; try++ {
		err := m.insertInto(op, target, image, protocol)
		if err == nil {
			return m.confirm(op, target, image)
		}
		said := m.classify(op, true, err)
		kind, ejecting := bmc.KindOf(said), isEjecting(err)
		switch {
		case ejecting:
			kind = bmc.Busy
		case kind != bmc.Unknown || !tells:
			return said
		}
		shown, lookErr := m.settle(&target, func(now drive) bool { return tells && shows(now, image) })
		switch {
		case lookErr != nil:
			return m.unseen(op, kind, detailOf(said)+"; then the drive could not be looked at: ", lookErr)
		case shown:
			return nil
		case !ejecting && !isRefusal(err):
			return said
		case try == insertTries:
			return m.fail(bmc.Busy, op, fmt.Sprintf("%s; it was offered the image %d times", detailOf(said), try))
		}
	}
}

// isEjecting knows what iDRACs say of a drive that is still, or again, taken: VRM0012 and VRM0021.
func isEjecting(err error) bool { return says(err, "VRM0012", "VRM0021") }

// isRefusal tells an error that the BMC itself gives from one of what is in front of it, behind which the request may
// still be under way, and from a lost answer.
func isRefusal(err error) bool {
	status := statusOf(err)

	return status >= http.StatusInternalServerError && status != http.StatusBadGateway && status != http.StatusGatewayTimeout
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

// accepted begins the text of an error of which nobody saw what came.
const accepted = "the BMC accepted it, and the drive was not seen to follow: "

// empty ejects what is in a drive, and looks until that is seen. A BMC that refuses, or goes on showing the image, may
// have lost it: the insert tells.
func (m *machine) empty(op string, target *drive) (emptied bool, err error) {
	err = m.eject(op, *target)
	switch bmc.KindOf(err) {
	case "":
	case bmc.Conflict, bmc.Unsupported:
		return false, nil
	default:
		return false, err
	}
	if emptied, err = m.settle(target, func(now drive) bool { return !now.holds() }); err != nil {
		return false, m.unseen(op, bmc.Unknown, accepted, err)
	}

	return emptied, nil
}

// settle looks at a drive, some times, until it is as it shall be. It notes the drive's newest ETag.
func (m *machine) settle(target *drive, settled func(drive) bool) (bool, error) {
	for try := range settleTries {
		if try > 0 {
			if err := m.wait(m.transport.current.ctx, settlePause); err != nil {
				return false, err
			}
		}
		now, err := m.readDrive(target.path)
		if err != nil {
			return false, err
		}
		target.etag = now.etag
		if settled(now) {
			return true, nil
		}
	}

	return false, nil
}

// unseen is the error of a change of which nobody saw what came. A BMC that has refused it stays known to have done so.
func (m *machine) unseen(op string, kind bmc.Kind, detail string, err error) error {
	return &bmc.Error{
		Kind: kind, Op: m.line(op, 0), BMC: m.options.Address.HostPort(), Err: fixedCause(err),
		Detail: m.line(detail+err.Error()+"; look at the drive before anything else", 0),
	}
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
		if !refused(err) || isEjecting(err) {
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
	shown, err := m.settle(&target, func(now drive) bool { return shows(now, image) })
	switch {
	case err != nil:
		return m.unseen(op, bmc.Unknown, accepted, err)
	case !shown:
		return m.fail(bmc.Unknown, op, "the BMC accepted the image, and its drive does not show it; "+
			"look at the drive, and whether the BMC can reach the image's server")
	default:
		return nil
	}
}

func shows(now drive, image string) bool {
	return now.holds() && (now.Image == "" || sameImage(now.Image, image))
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
	if err := m.eject(op, target); err != nil {
		return err
	}
	emptied, err := m.settle(&target, func(now drive) bool { return !now.holds() })
	switch {
	case err != nil:
		return m.unseen(op, bmc.Unknown, accepted, err)
	case !emptied:
		return m.fail(bmc.NotFollowed, op, "the BMC accepted it, and its drive still shows the image; "+
			"does the operating system hold it? Eject it there, or restart the BMC")
	default:
		return nil
	}
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
