// Package rawdisk reads a raw disk image without mounting it: its GPT, and single files of a FAT partition.
//
// It exists beside go-diskfs because images come from elsewhere. go-diskfs (v1.9.4) allocates what a header asks for,
// follows a FAT chain that ends in itself without an end, and reads a partition array of zero-sized entries without an
// end. Here every size is checked before it is used, and every chain is shorter than the file system. Nothing is ever
// written.
package rawdisk
