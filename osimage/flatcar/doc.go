// Package flatcar reads the artifacts of a Flatcar Container Linux release and gives the parts that its slots need: the
// /usr partition, whose hash tree lies behind the file system in the same partition, and the kernel, which holds the
// root hash.
//
// Two kinds are read: the disk image (flatcar_production_image.bin, also as .bz2), and what its updater gets
// (flatcar_production_update.gz, a container of its own in spite of the name, or the unsigned
// flatcar_production_update.bin). Nothing is mounted and nothing needs root. A kernel and a /usr that do not belong
// together are refused, and so is a payload that changes an old image instead of bringing a whole one.
//
// The formats are those of flatcar/scripts (build_library/disk_layout.json, disk_util, build_image_util.sh) and
// flatcar/update_engine (src/update_engine/update_metadata.proto, delta_metadata.cc, payload_processor.cc).
package flatcar
