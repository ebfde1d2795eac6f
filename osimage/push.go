package osimage

import "context"

// Push copies an image, or an index with images, from an OCI layout folder to "registry/repository:tag", with what is
// attached to it; see Copy. Progress, when set, is called with the bytes of the blobs.
//
// What is sent is verified: when a file of the folder does not have its digest, the error is ErrWrongDigest and names it,
// and neither that layer nor the manifest is in the registry. Layers that the registry has are not read.
func (c *Client) Push(ctx context.Context, dir, tag, reference string, progress func(done, total int64)) (Copied, error) {
	return c.Copy(ctx, Location{Dir: dir, Tag: tag}, Location{Reference: reference}, CopyOptions{Images: true, Progress: progress})
}
