package gateway

import "golang.org/x/sys/unix"

// mapped is a buffer of length 0 that is no part of the heap: it must be given to unmap, and not be touched after that.
func mapped(size int64) []byte {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil { // too many mappings, or no memory: the heap may have some
		return make([]byte, 0, size)
	}
	return b[:0]
}

// unmap gives the memory of a mapped buffer back at once. One that came from the heap stays the collector's.
func unmap(b []byte) { _ = unix.Munmap(b[:cap(b)]) }
