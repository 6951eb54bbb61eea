package nvml

// go-nvml's GetSupportedMemoryClocks and GetSupportedGraphicsClocks pass no
// room for a list and so return its length alone. These are the same calls with
// room, on the library that go-nvml has loaded with RTLD_GLOBAL.

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

enum { NVML_FUNCTION_NOT_FOUND = 13 };

// Lists the memory clocks of the GPU with this UUID, or the graphics clocks
// beside one memory clock unless that is 0. count is the room, and what is there.
static int gputune_clocks(const char *uuid, unsigned memory, unsigned *count, unsigned *clocks)
{
	int (*find)(const char *, void **) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetHandleByUUID");
	int (*memories)(void *, unsigned *, unsigned *) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetSupportedMemoryClocks");
	int (*graphics)(void *, unsigned, unsigned *, unsigned *) = dlsym(RTLD_DEFAULT, "nvmlDeviceGetSupportedGraphicsClocks");
	void *device;
	int ret;

	if (!find || !memories || !graphics)
		return NVML_FUNCTION_NOT_FOUND;
	ret = find(uuid, &device);
	if (ret)
		return ret;
	return memory ? graphics(device, memory, count, clocks) : memories(device, count, clocks);
}
*/
import "C"

import (
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// maxClocks is more than any GPU lists: an H200 has 110 steps of 15 MHz.
const maxClocks = 4096

// supportedClocks lists the memory clocks in MHz of the GPU with this UUID, or
// with a memory clock the graphics clocks that go with it. The library must be
// initialised.
func supportedClocks(uuid string, memory uint32) ([]uint32, nvml.Return) {
	name := C.CString(uuid)
	defer C.free(unsafe.Pointer(name))
	list := make([]uint32, maxClocks)
	count := C.uint(len(list))
	ret := nvml.Return(C.gputune_clocks(name, C.uint(memory), &count, (*C.uint)(unsafe.Pointer(&list[0]))))
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	list = list[:min(int(count), maxClocks)]
	if len(list) == 0 {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	return list, nvml.SUCCESS
}
