/*
 * Calls every function of the fake library: before init, without places for
 * the answers, for handles that are none, with room that is just too small and
 * just enough, and from several threads. Run with a library that is compiled
 * with sanitizers; ends with a message at the first answer that is wrong.
 * Expects two GPUs, the second split, with a MIG device at place 1.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT(want, call) \
	do { \
		nvmlReturn_t got_ = (call); \
		if (got_ != (want)) { \
			fprintf(stderr, "line %d: %s: got %d (%s), want %d\n", __LINE__, #call, got_, nvmlErrorString(got_), want); \
			exit(1); \
		} \
	} while (0)

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

/* All calls about a device; the answers go nowhere if there is no place. */
static void each(nvmlDevice_t d, int place, nvmlReturn_t want)
{
	union {
		unsigned int u[2];
		unsigned long long ull;
		unsigned long ul[2];
		nvmlEnableState_t state[2];
		nvmlComputeMode_t mode;
		nvmlPstates_t pstate;
		nvmlPciInfo_t pci;
		nvmlUtilization_t utilization;
		nvmlMemory_t memory;
		char text[96];
	} out;
	void *p = place ? &out : NULL;
	unsigned int *u = p, *v = place ? &out.u[1] : NULL;

	WANT(want, nvmlDeviceGetIndex(d, u));
	WANT(want, nvmlDeviceGetUUID(d, p, sizeof out));
	WANT(want, nvmlDeviceGetName(d, p, sizeof out));
	WANT(want, nvmlDeviceGetMinorNumber(d, u));
	WANT(want, nvmlDeviceGetArchitecture(d, u));
	WANT(want, nvmlDeviceGetPciInfo_v3(d, p));
	WANT(want, nvmlDeviceGetMemoryAffinity(d, 2, p, NVML_AFFINITY_SCOPE_NODE));
	WANT(want, nvmlDeviceGetCpuAffinity(d, 2, p));
	WANT(want, nvmlDeviceGetCpuAffinityWithinScope(d, 2, p, NVML_AFFINITY_SCOPE_SOCKET));
	WANT(want, nvmlDeviceGetMigMode(d, u, v));
	WANT(want, nvmlDeviceGetMaxMigDeviceCount(d, u));
	WANT(want, nvmlDeviceIsMigDeviceHandle(d, u));
	WANT(want, nvmlDeviceGetPowerManagementLimit(d, u));
	WANT(want, nvmlDeviceGetEnforcedPowerLimit(d, u));
	WANT(want, nvmlDeviceGetPowerManagementLimitConstraints(d, u, v));
	WANT(want, nvmlDeviceGetPowerManagementDefaultLimit(d, u));
	WANT(want, nvmlDeviceGetPowerUsage(d, u));
	WANT(want, nvmlDeviceGetTotalEnergyConsumption(d, p));
	WANT(want, nvmlDeviceGetClockInfo(d, NVML_CLOCK_SM, u));
	WANT(want, nvmlDeviceGetClock(d, NVML_CLOCK_MEM, NVML_CLOCK_ID_CURRENT, u));
	WANT(want, nvmlDeviceGetMaxClockInfo(d, NVML_CLOCK_SM, u));
	WANT(want, nvmlDeviceGetMinMaxClockOfPState(d, NVML_CLOCK_SM, NVML_PSTATE_0, u, v));
	WANT(want, nvmlDeviceGetApplicationsClock(d, NVML_CLOCK_SM, u));
	WANT(want, nvmlDeviceGetDefaultApplicationsClock(d, NVML_CLOCK_SM, u));
	WANT(want, nvmlDeviceGetPersistenceMode(d, p));
	WANT(want, nvmlDeviceGetComputeMode(d, p));
	WANT(want, nvmlDeviceGetEccMode(d, p, place ? &out.state[1] : NULL));
	WANT(want, nvmlDeviceGetCurrentClocksEventReasons(d, p));
	WANT(want, nvmlDeviceGetCurrentClocksThrottleReasons(d, p));
	WANT(want, nvmlDeviceGetPerformanceState(d, p));
	WANT(want, nvmlDeviceGetUtilizationRates(d, p));
	WANT(want, nvmlDeviceGetTemperature(d, NVML_TEMPERATURE_GPU, u));
	WANT(want, nvmlDeviceGetMemoryInfo(d, p));
}

/* Those that answer nothing. */
static void change(nvmlDevice_t d, nvmlReturn_t want)
{
	WANT(want, nvmlDeviceSetPowerManagementLimit(d, 400000));
	WANT(want, nvmlDeviceSetGpuLockedClocks(d, 1200, 1500));
	WANT(want, nvmlDeviceResetGpuLockedClocks(d));
	WANT(want, nvmlDeviceSetMemoryLockedClocks(d, 3201, 3201));
	WANT(want, nvmlDeviceResetMemoryLockedClocks(d));
	WANT(want, nvmlDeviceSetApplicationsClocks(d, 3201, 1200));
	WANT(want, nvmlDeviceResetApplicationsClocks(d));
	WANT(want, nvmlDeviceSetPersistenceMode(d, NVML_FEATURE_DISABLED));
	WANT(want, nvmlDeviceSetPersistenceMode(d, NVML_FEATURE_ENABLED));
	WANT(want, nvmlDeviceSetComputeMode(d, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS));
	WANT(want, nvmlDeviceSetComputeMode(d, NVML_COMPUTEMODE_DEFAULT));
	WANT(want, nvmlDeviceSetPowerManagementLimit(d, 700000));
}

static void lookups(nvmlReturn_t good, nvmlReturn_t bad, nvmlDevice_t *d)
{
	WANT(good, nvmlDeviceGetHandleByIndex(0, d));
	WANT(good, nvmlDeviceGetHandleByIndex_v2(0, d));
	WANT(good, nvmlDeviceGetHandleByPciBusId("0000:00:06.0", d));
	WANT(good, nvmlDeviceGetHandleByPciBusId_v2("0000:00:06.0", d));
	WANT(bad, nvmlDeviceGetHandleByPciBusId_v2(NULL, d));
	WANT(bad, nvmlDeviceGetHandleByPciBusId_v2("", d));
	WANT(bad, nvmlDeviceGetHandleByUUID(NULL, d));
	WANT(bad, nvmlDeviceGetHandleByIndex_v2(~0U, d));
	WANT(bad, nvmlDeviceGetHandleByIndex_v2(0, NULL));
}

/* Allocated to the byte, so that a write past the end is seen. */
static void sizes(nvmlDevice_t d)
{
	unsigned int count = 0;
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetSupportedMemoryClocks(d, NULL, NULL));
	WANT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetSupportedMemoryClocks(d, &count, NULL));
	CHECK(count == 2);
	unsigned int *clocks = malloc(2 * sizeof *clocks);
	WANT(NVML_SUCCESS, nvmlDeviceGetSupportedMemoryClocks(d, &count, clocks));
	CHECK(count == 2 && clocks[0] == 3201 && clocks[1] == 2201);
	free(clocks);

	count = 109;
	clocks = malloc(110 * sizeof *clocks);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetSupportedGraphicsClocks(d, 3201, NULL, clocks));
	WANT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetSupportedGraphicsClocks(d, 3201, &count, clocks));
	CHECK(count == 110);
	WANT(NVML_SUCCESS, nvmlDeviceGetSupportedGraphicsClocks(d, 3201, &count, clocks));
	for (unsigned int i = 0; i < 110; i++)
		CHECK(clocks[i] == 1980 - 15 * i);
	CHECK(count == 110 && clocks[109] == 345);
	free(clocks);

	char *text = malloc(strlen("NVIDIA H200") + 1);
	WANT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetName(d, text, strlen("NVIDIA H200")));
	WANT(NVML_SUCCESS, nvmlDeviceGetName(d, text, strlen("NVIDIA H200") + 1));
	CHECK(strcmp(text, "NVIDIA H200") == 0);
	free(text);

	unsigned long *mask = malloc(200 * sizeof *mask); /* more than 8192 CPUs */
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCpuAffinity(d, 0, mask));
	WANT(NVML_SUCCESS, nvmlDeviceGetCpuAffinity(d, 200, mask));
	CHECK(mask[0] == 0xffffffff && mask[199] == 0);
	free(mask);

	count = 1;
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses_v3(d, NULL, NULL));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses_v3(d, &count, NULL));
	nvmlProcessInfo_t *processes = malloc(2 * sizeof *processes);
	WANT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetComputeRunningProcesses_v3(d, &count, processes));
	CHECK(count == 2);
	WANT(NVML_SUCCESS, nvmlDeviceGetComputeRunningProcesses_v3(d, &count, processes));
	CHECK(processes[0].pid == 17 && processes[1].pid == 18);
	free(processes);

	unsigned int rows[4];
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetRemappedRows(d, rows, NULL, NULL, NULL));
	WANT(NVML_SUCCESS, nvmlDeviceGetRemappedRows(d, &rows[0], &rows[1], &rows[2], &rows[3]));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetNumaNodeId(d, rows));
}

static void mig(nvmlDevice_t split)
{
	nvmlDevice_t part, parent;
	unsigned int is;
	char uuid[96];
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMigDeviceHandleByIndex(split, 1, NULL));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMigDeviceHandleByIndex(split, ~0U, &part));
	WANT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetMigDeviceHandleByIndex(split, 0, &part));
	WANT(NVML_SUCCESS, nvmlDeviceGetMigDeviceHandleByIndex(split, 1, &part));
	WANT(NVML_SUCCESS, nvmlDeviceIsMigDeviceHandle(part, &is));
	WANT(NVML_SUCCESS, nvmlDeviceGetUUID(part, uuid, sizeof uuid));
	CHECK(is == 1 && strcmp(uuid, "MIG-a") == 0);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, NULL));
	WANT(NVML_SUCCESS, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, &parent));
	CHECK(memcmp(&parent, &split, sizeof parent) == 0);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parent, &parent));
	change(part, NVML_ERROR_NOT_SUPPORTED);
}

static void *thread(void *unused)
{
	nvmlDevice_t d;
	(void)unused;
	WANT(NVML_SUCCESS, nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS));
	WANT(NVML_SUCCESS, nvmlDeviceGetHandleByIndex_v2(0, &d));
	for (int i = 0; i < 3; i++) {
		each(d, 1, NVML_SUCCESS);
		change(d, NVML_SUCCESS);
	}
	WANT(NVML_SUCCESS, nvmlShutdown());
	return NULL;
}

int main(void)
{
	unsigned int count;
	int version;
	char text[96];
	nvmlDevice_t none, wild, d, split, part, slots[2];
	memset(&none, 0, sizeof none);
	memset(&wild, 0x5a, sizeof wild);

	WANT(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	WANT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
	WANT(NVML_ERROR_UNINITIALIZED, nvmlSystemGetDriverVersion(text, sizeof text));
	WANT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetComputeRunningProcesses_v3(none, &count, NULL));
	lookups(NVML_ERROR_UNINITIALIZED, NVML_ERROR_UNINITIALIZED, &d);
	each(none, 1, NVML_ERROR_UNINITIALIZED);
	change(none, NVML_ERROR_UNINITIALIZED);

	WANT(NVML_SUCCESS, nvmlInit());
	WANT(NVML_SUCCESS, nvmlInit_v2());
	WANT(NVML_SUCCESS, nvmlShutdown());
	WANT(NVML_SUCCESS, nvmlDeviceGetCount(&count));
	WANT(NVML_SUCCESS, nvmlDeviceGetCount_v2(&count));
	CHECK(count == 2);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCount_v2(NULL));
	WANT(NVML_SUCCESS, nvmlSystemGetDriverVersion(text, sizeof text));
	WANT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlSystemGetDriverVersion(text, 3));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetNVMLVersion(NULL, 80));
	WANT(NVML_SUCCESS, nvmlSystemGetCudaDriverVersion(&version));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetCudaDriverVersion_v2(NULL));

	lookups(NVML_SUCCESS, NVML_ERROR_INVALID_ARGUMENT, &d);
	WANT(NVML_SUCCESS, nvmlDeviceGetHandleByIndex_v2(1, &split));
	slots[0] = none;
	slots[1] = wild;
	for (int i = 0; i < 2; i++) {
		each(slots[i], 1, NVML_ERROR_INVALID_ARGUMENT);
		change(slots[i], NVML_ERROR_INVALID_ARGUMENT);
	}
	each(d, 0, NVML_ERROR_INVALID_ARGUMENT);
	each(d, 1, NVML_SUCCESS);
	each(split, 1, NVML_SUCCESS);
	change(d, NVML_SUCCESS);
	sizes(d);
	WANT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetMigDeviceHandleByIndex(d, 0, &part));
	mig(split);

	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, thread, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	WANT(NVML_SUCCESS, nvmlShutdown());
	WANT(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	return 0;
}
