// Package filesystem finds out what kind of file system an image holds and how large it is, and reads small files from
// it, such as os-release, without mounting it: ext2 to ext4, and btrfs as mkfs makes it on one device.
//
// It reads what others have made, so every size is checked before it is used, every walk has an end, and memory is
// bounded. Checksums are not looked at: what is read here is looked at by a person, and the image's own hash tree says
// whether the bytes are right. Nothing is ever written.
package filesystem
