package flatcar

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The limits are far above real payloads: 1 GiB in operations of 1 MiB makes 1024 of them and a manifest of 80 KiB.
const (
	maxManifest   = 8 << 20
	maxOperations = 1 << 17
	maxExtents    = 1 << 18
)

// What an operation does (InstallOperation.Type).
const (
	opReplace   = 0
	opReplaceBZ = 1
	opMove      = 2
	opBSDiff    = 3
)

// What a procedure updates (InstallProcedure.Type); procedureNone is one that does not say.
const (
	procedureKernel = 0
	procedurePCR    = 1
	procedureNone   = ^uint64(0)
)

// manifest is DeltaArchiveManifest of update_metadata.proto. The numbers of its fields are in the switches below.
type manifest struct {
	operations []operation
	procedures []procedure
	blockSize  uint64
	info       *info
	// signed tells that both of the following are there.
	signed                          bool
	signaturesOffset, signaturesLen uint64

	extents, count int
}

// operation is InstallOperation. Offset and length are those of its blob, behind the manifest.
type operation struct {
	kind           uint64
	offset, length uint64
	extents        []extent
	sum            []byte
	// at is where the message is, in the file, for errors.
	at int64
}

// extent is Extent, in blocks.
type extent struct{ start, count uint64 }

// info is InstallInfo: of what an operation's list makes.
type info struct {
	size uint64
	sum  []byte
}

type procedure struct {
	kind       uint64
	operations []operation
	info       *info
}

// field is one field of a message.
type field struct {
	number int
	kind   protowire.Type
	value  uint64 // of a varint
	data   []byte // of a length-delimited field
	at     int64  // where its value begins, in the file
}

// fieldError names the place of a field.
type fieldError struct {
	at   int64
	text string
}

func (e *fieldError) Error() string { return fmt.Sprintf("offset %d: %s", e.at, e.text) }

// fields calls visit for each field of a message whose first byte is at an offset of the file.
func fields(message []byte, at int64, visit func(field) error) error {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return &fieldError{at, "there is no protobuf field: " + protowire.ParseError(length).Error()}
		}

		message, at = message[length:], at+int64(length)
		found := field{number: int(number), kind: kind, at: at}

		switch kind {
		case protowire.VarintType:
			found.value, length = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			found.data, length = protowire.ConsumeBytes(message)
		default:
			length = protowire.ConsumeFieldValue(number, kind, message)
		}

		if length < 0 {
			return &fieldError{at, fmt.Sprintf("field %d: %s", number, protowire.ParseError(length))}
		}

		found.at = at + int64(length-len(found.data))

		if err := visit(found); err != nil {
			return err
		}

		message, at = message[length:], at+int64(length)
	}

	return nil
}

// want refuses a field of another type than the format has.
func (f field) want(kind protowire.Type, name string) error {
	if f.kind != kind {
		return &fieldError{f.at, fmt.Sprintf("%s has the wire type %d, want %d", name, f.kind, kind)}
	}

	return nil
}

func parseManifest(message []byte, at int64) (*manifest, error) {
	result := &manifest{blockSize: blockSize}

	var offset, length bool

	err := fields(message, at, func(f field) (err error) {
		switch f.number {
		case 1:
			result.operations, err = result.operation(result.operations, f, "partition_operations")
		case 3:
			result.blockSize, err = f.value, f.want(protowire.VarintType, "block_size")
		case 4:
			result.signaturesOffset, offset, err = f.value, true, f.want(protowire.VarintType, "signatures_offset")
		case 5:
			result.signaturesLen, length, err = f.value, true, f.want(protowire.VarintType, "signatures_size")
		case 9:
			result.info, err = parseInfo(f, "new_partition_info")
		case 10:
			err = result.procedure(f)
		}

		return err
	})

	result.signed = offset && length

	return result, err
}

func (m *manifest) procedure(f field) error {
	if err := f.want(protowire.BytesType, "procedures"); err != nil {
		return err
	}

	if m.count++; m.count > maxOperations {
		return &fieldError{f.at, fmt.Sprintf("there are more than %d procedures and operations", maxOperations)}
	}

	result := procedure{kind: procedureNone}

	if err := fields(f.data, f.at, func(f field) (err error) {
		switch f.number {
		case 1:
			result.kind, err = f.value, f.want(protowire.VarintType, "procedures.type")
		case 2:
			result.operations, err = m.operation(result.operations, f, "procedures.operations")
		case 4:
			result.info, err = parseInfo(f, "procedures.new_info")
		}

		return err
	}); err != nil {
		return err
	}

	m.procedures = append(m.procedures, result)

	return nil
}

func (m *manifest) operation(list []operation, f field, name string) ([]operation, error) {
	if err := f.want(protowire.BytesType, name); err != nil {
		return list, err
	}

	if m.count++; m.count > maxOperations {
		return list, &fieldError{f.at, fmt.Sprintf("there are more than %d procedures and operations", maxOperations)}
	}

	result := operation{at: f.at}
	typed := false

	err := fields(f.data, f.at, func(f field) (err error) {
		switch f.number {
		case 1:
			result.kind, typed, err = f.value, true, f.want(protowire.VarintType, name+".type")
		case 2:
			result.offset, err = f.value, f.want(protowire.VarintType, name+".data_offset")
		case 3:
			result.length, err = f.value, f.want(protowire.VarintType, name+".data_length")
		case 6:
			err = m.extent(&result, f, name+".dst_extents")
		case 8:
			result.sum, err = f.data, f.want(protowire.BytesType, name+".data_sha256_hash")
		}

		return err
	})
	if err == nil && !typed {
		err = &fieldError{f.at, name + ".type is missing"}
	}

	return append(list, result), err
}

func (m *manifest) extent(to *operation, f field, name string) error {
	if err := f.want(protowire.BytesType, name); err != nil {
		return err
	}

	if m.extents++; m.extents > maxExtents {
		return &fieldError{f.at, fmt.Sprintf("there are more than %d extents", maxExtents)}
	}

	var result extent

	if err := fields(f.data, f.at, func(f field) (err error) {
		switch f.number {
		case 1:
			result.start, err = f.value, f.want(protowire.VarintType, name+".start_block")
		case 2:
			result.count, err = f.value, f.want(protowire.VarintType, name+".num_blocks")
		}

		return err
	}); err != nil {
		return err
	}

	to.extents = append(to.extents, result)

	return nil
}

func parseInfo(f field, name string) (*info, error) {
	if err := f.want(protowire.BytesType, name); err != nil {
		return nil, err
	}

	result := &info{}

	err := fields(f.data, f.at, func(f field) (err error) {
		switch f.number {
		case 1:
			result.size, err = f.value, f.want(protowire.VarintType, name+".size")
		case 2:
			result.sum, err = f.data, f.want(protowire.BytesType, name+".hash")
		}

		return err
	})

	return result, err
}

// parseSignatures reads the message Signatures: the data of each.
func parseSignatures(message []byte, at int64) ([][]byte, error) {
	var result [][]byte

	err := fields(message, at, func(f field) error {
		if f.number != 1 {
			return nil
		}

		if err := f.want(protowire.BytesType, "signatures"); err != nil {
			return err
		}

		return fields(f.data, f.at, func(f field) error {
			if f.number != 2 {
				return nil
			}

			result = append(result, f.data)

			return f.want(protowire.BytesType, "signatures.data")
		})
	})

	return result, err
}
