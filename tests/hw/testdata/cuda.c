// A small CUDA program for tests: it says which GPUs it sees, how many
// multiprocessors each has for it, and how long a kernel takes. It loads
// libcuda.so.1 itself and brings its kernel as PTX, so that it is built where
// there is no CUDA and runs where there is only a driver.
//
//   cuda [--device N] [--seconds S] [--blocks B] [--copy MIB]
//
// It prints lines of "word value…" and then waits for the end of its standard
// input before it gives the GPU up:
//
//   device N UUID PCI MULTIPROCESSORS     for each GPU, UUID as GPU-…
//   ready                                 a context is there; goes on at a line "go"
//   kernel MEDIAN-MS COUNT                with --seconds
//   copy pinned|pageable to|from GB/S     with --copy
//   done
//
// An error is one line on standard error, "CALL: CUDA_ERROR_…", and status 1.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef unsigned long long CUdeviceptr;

enum { MULTIPROCESSORS = 16 }; // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

static CUresult (*init)(unsigned);
static CUresult (*get_error_name)(CUresult, const char **);
static CUresult (*device_get_count)(int *);
static CUresult (*device_get)(CUdevice *, int);
static CUresult (*device_get_uuid)(unsigned char[16], CUdevice);
static CUresult (*device_get_pci)(char *, int, CUdevice);
static CUresult (*device_get_attribute)(int *, int, CUdevice);
static CUresult (*primary_retain)(CUcontext *, CUdevice);
static CUresult (*primary_release)(CUdevice);
static CUresult (*set_current)(CUcontext);
static CUresult (*synchronize)(void);
static CUresult (*load_module)(CUmodule *, const void *);
static CUresult (*get_function)(CUfunction *, CUmodule, const char *);
static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*allocate_host)(void **, size_t);
static CUresult (*to_device)(CUdeviceptr, const void *, size_t);
static CUresult (*from_device)(void *, CUdeviceptr, size_t);

static const struct {
	const char *name;
	void *pointer;
} symbols[] = {
	{"cuInit", &init},
	{"cuGetErrorName", &get_error_name},
	{"cuDeviceGetCount", &device_get_count},
	{"cuDeviceGet", &device_get},
	{"cuDeviceGetUuid", &device_get_uuid},
	{"cuDeviceGetPCIBusId", &device_get_pci},
	{"cuDeviceGetAttribute", &device_get_attribute},
	{"cuDevicePrimaryCtxRetain", &primary_retain},
	{"cuDevicePrimaryCtxRelease_v2", &primary_release},
	{"cuCtxSetCurrent", &set_current},
	{"cuCtxSynchronize", &synchronize},
	{"cuModuleLoadData", &load_module},
	{"cuModuleGetFunction", &get_function},
	{"cuLaunchKernel", &launch},
	{"cuMemAlloc_v2", &allocate},
	{"cuMemAllocHost_v2", &allocate_host},
	{"cuMemcpyHtoD_v2", &to_device},
	{"cuMemcpyDtoH_v2", &from_device},
};

// A chain of dependent multiplications takes as long as it is, however many
// other blocks run beside it; the clock would go on while others have the GPU.
static const char kernel[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry spin(.param .u64 out, .param .u32 rounds)\n{\n"
	".reg .pred %more;\n.reg .b32 %x, %i, %rounds;\n.reg .b64 %out;\n"
	"ld.param.u64 %out, [out];\nld.param.u32 %rounds, [rounds];\n"
	"mov.u32 %x, %tid.x;\nmov.u32 %i, 0;\n"
	"next:\nmad.lo.u32 %x, %x, 1664525, %i;\nadd.u32 %i, %i, 1;\n"
	"setp.lt.u32 %more, %i, %rounds;\n@%more bra next;\n"
	"st.global.u32 [%out], %x;\nret;\n}\n";

static void check(CUresult result, const char *call) {
	const char *name = NULL;

	if (result == 0)
		return;
	if (get_error_name == NULL || get_error_name(result, &name) != 0 || name == NULL)
		name = "unknown error";
	fprintf(stderr, "%s: %s (%d)\n", call, name, result);
	exit(1);
}
#define CHECK(call) check(call, #call)

static double now(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int count) {
	qsort(values, (size_t)count, sizeof *values, by_value);
	return values[count / 2];
}

static void run_kernels(double seconds, unsigned blocks) {
	static double times[100000];
	CUmodule module;
	CUfunction spin;
	CUdeviceptr out;
	unsigned rounds = 10000000;
	void *arguments[] = {&out, &rounds};
	int count = 0;

	CHECK(load_module(&module, kernel));
	CHECK(get_function(&spin, module, "spin"));
	CHECK(allocate(&out, 4));
	CHECK(launch(spin, blocks, 1, 1, 64, 1, 1, 0, NULL, arguments, NULL));
	CHECK(synchronize());
	for (double end = now() + seconds; now() < end && count < 100000; count++) {
		double began = now();

		CHECK(launch(spin, blocks, 1, 1, 64, 1, 1, 0, NULL, arguments, NULL));
		CHECK(synchronize());
		times[count] = (now() - began) * 1e3;
	}
	if (count == 0) {
		fprintf(stderr, "kernel: none ended in %g s\n", seconds);
		exit(1);
	}
	printf("kernel %.2f %d\n", median(times, count), count);
}

static void copy(size_t mib) {
	size_t bytes = mib << 20;
	CUdeviceptr device;
	void *pageable = malloc(bytes), *pinned;

	CHECK(allocate(&device, bytes));
	CHECK(allocate_host(&pinned, bytes));
	if (pageable == NULL) {
		fprintf(stderr, "copy: no memory for %zu MiB\n", mib);
		exit(1);
	}
	memset(pageable, 1, bytes);
	memset(pinned, 1, bytes);
	for (int kind = 0; kind < 4; kind++) {
		void *host = kind < 2 ? pinned : pageable;
		double times[9];

		for (int i = 0; i < 9; i++) {
			double began = now();

			if (kind % 2 == 0)
				CHECK(to_device(device, host, bytes));
			else
				CHECK(from_device(host, device, bytes));
			CHECK(synchronize());
			times[i] = now() - began;
		}
		printf("copy %s %s %.2f\n", kind < 2 ? "pinned" : "pageable", kind % 2 == 0 ? "to" : "from", (double)bytes / 1e9 / median(times, 9));
	}
}

int main(int argc, char **argv) {
	int number = 0, count;
	double seconds = 0;
	unsigned blocks = 1;
	size_t mib = 0;
	char line[256];
	CUdevice device;
	CUcontext context;
	void *library;

	for (int i = 1; i < argc; i += 2) {
		if (i + 1 < argc && strcmp(argv[i], "--device") == 0)
			number = atoi(argv[i + 1]);
		else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0)
			seconds = atof(argv[i + 1]);
		else if (i + 1 < argc && strcmp(argv[i], "--blocks") == 0)
			blocks = (unsigned)atoi(argv[i + 1]);
		else if (i + 1 < argc && strcmp(argv[i], "--copy") == 0)
			mib = (size_t)atol(argv[i + 1]);
		else {
			fprintf(stderr, "%s: want --device N, --seconds S, --blocks B, --copy MIB\n", argv[i]);
			return 2;
		}
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
		*(void **)symbols[i].pointer = dlsym(library, symbols[i].name);
		if (*(void **)symbols[i].pointer == NULL) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
	}
	CHECK(init(0));
	CHECK(device_get_count(&count));
	for (int i = 0; i < count; i++) {
		unsigned char u[16];
		char pci[64];
		int multiprocessors;

		CHECK(device_get(&device, i));
		CHECK(device_get_uuid(u, device));
		CHECK(device_get_pci(pci, sizeof pci, device));
		CHECK(device_get_attribute(&multiprocessors, MULTIPROCESSORS, device));
		printf("device %d GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x %s %d\n", i,
		       u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15],
		       pci, multiprocessors);
	}
	CHECK(device_get(&device, number));
	CHECK(primary_retain(&context, device));
	CHECK(set_current(context));
	puts("ready");
	if (fgets(line, sizeof line, stdin) != NULL) {
		if (seconds > 0)
			run_kernels(seconds, blocks);
		if (mib > 0)
			copy(mib);
		puts("done");
		while (fgets(line, sizeof line, stdin) != NULL) {
		}
	}
	CHECK(primary_release(device));
	return 0;
}
