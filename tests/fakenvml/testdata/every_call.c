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
		nvmlMemory_v2_t memory2;
		nvmlFieldValue_t fields[2];
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
	out.memory2.version = nvmlMemory_v2;
	WANT(want, nvmlDeviceGetMemoryInfo_v2(d, p));
	WANT(want, nvmlDeviceGetPcieReplayCounter(d, u));
	WANT(want, nvmlDeviceGetTotalEccErrors(d, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC, p));
	WANT(want, nvmlDeviceGetFieldValues(d, 2, p));
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
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGraphicsRunningProcesses_v3(d, NULL, processes));
	WANT(NVML_SUCCESS, nvmlDeviceGetGraphicsRunningProcesses_v3(d, &count, processes));
	CHECK(count == 0);
	count = 2;
	WANT(NVML_SUCCESS, nvmlDeviceGetComputeRunningProcesses_v3(d, &count, processes));
	CHECK(processes[0].pid == 17 && processes[1].pid == 18);
	free(processes);

	nvmlValueType_t type;
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetSamples(d, NVML_GPU_UTILIZATION_SAMPLES, 0, NULL, NULL, NULL));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetSamples(d, NVML_TOTAL_POWER_SAMPLES, 0, &type, &count, NULL));
	WANT(NVML_SUCCESS, nvmlDeviceGetSamples(d, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, NULL));
	CHECK(type == NVML_VALUE_TYPE_UNSIGNED_INT && count == 100);
	nvmlSample_t *samples = malloc(count * sizeof *samples);
	WANT(NVML_SUCCESS, nvmlDeviceGetSamples(d, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, samples));
	for (unsigned int i = 1; i < count; i++)
		CHECK(samples[i].timeStamp == samples[i - 1].timeStamp + 100000 && samples[i].sampleValue.uiVal + samples[i - 1].sampleValue.uiVal == 100);
	WANT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetSamples(d, NVML_GPU_UTILIZATION_SAMPLES, ~0ULL / 2, &type, &count, samples));
	free(samples);

	nvmlFieldValue_t field[2] = {{.fieldId = 197}, {.fieldId = 198}};
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetFieldValues(d, 0, field));
	WANT(NVML_SUCCESS, nvmlDeviceGetFieldValues(d, 2, field));
	CHECK(field[0].nvmlReturn == NVML_SUCCESS && field[0].value.ullVal == 4096 && field[1].nvmlReturn == NVML_ERROR_NOT_SUPPORTED);

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

/* Calls about instances of a handle that is none, or before init. */
static void no_instance(nvmlGpuInstance_t g, nvmlComputeInstance_t p, nvmlReturn_t want)
{
	nvmlGpuInstanceInfo_t info;
	nvmlComputeInstanceInfo_t part_info;
	nvmlComputeInstanceProfileInfo_v2_t kind = {.version = nvmlComputeInstanceProfileInfo_v2};
	nvmlComputeInstancePlacement_t at = {0, 1};
	nvmlComputeInstance_t out;
	unsigned int count = 1;
	WANT(want, nvmlGpuInstanceGetInfo(g, &info));
	WANT(want, nvmlGpuInstanceDestroy(g));
	WANT(want, nvmlGpuInstanceGetComputeInstanceProfileInfoV(g, 0, 0, &kind));
	WANT(want, nvmlGpuInstanceGetComputeInstances(g, 0, &out, &count));
	WANT(want, nvmlGpuInstanceGetComputeInstanceById(g, 0, &out));
	WANT(want, nvmlGpuInstanceCreateComputeInstance(g, 0, &out));
	WANT(want, nvmlGpuInstanceCreateComputeInstanceWithPlacement(g, 0, &at, &out));
	WANT(want, nvmlComputeInstanceGetInfo(p, &part_info));
	WANT(want, nvmlComputeInstanceGetInfo_v2(p, &part_info));
	WANT(want, nvmlComputeInstanceDestroy(p));
}

/* Makes instances beside the one that is there and takes them away again. */
static void instances(nvmlDevice_t whole, nvmlDevice_t split)
{
	nvmlReturn_t activation;
	nvmlGpuInstanceProfileInfo_v2_t profile = {.version = nvmlGpuInstanceProfileInfo_v2};
	nvmlComputeInstanceProfileInfo_v2_t kind = {.version = nvmlComputeInstanceProfileInfo_v2};
	nvmlGpuInstancePlacement_t at = {4, 4}, wrong = {4, 3}, taken = {0, 4};
	nvmlComputeInstancePlacement_t first = {0, 1}, beyond = {3, 1};
	nvmlGpuInstanceInfo_t info;
	nvmlComputeInstanceInfo_t part_info;
	unsigned int count, id;

	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceSetMigMode(split, 1, NULL));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceSetMigMode(split, 2, &activation));
	WANT(NVML_SUCCESS, nvmlDeviceSetMigMode(split, 0, &activation));
	CHECK(activation == NVML_ERROR_IN_USE);
	WANT(NVML_SUCCESS, nvmlDeviceSetMigMode(whole, 1, &activation));
	CHECK(activation == NVML_SUCCESS);
	WANT(NVML_SUCCESS, nvmlDeviceSetMigMode(whole, 0, &activation));

	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstanceProfileInfoV(split, 0, NULL));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstanceProfileInfoV(split, ~0U, &profile));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetGpuInstanceProfileInfoV(split, NVML_GPU_INSTANCE_PROFILE_8_SLICE, &profile));
	WANT(NVML_SUCCESS, nvmlDeviceGetGpuInstanceProfileInfoV(split, NVML_GPU_INSTANCE_PROFILE_3_SLICE, &profile));
	CHECK(profile.id == 9 && profile.instanceCount == 2 && strcmp(profile.name, "MIG 3g.71gb") == 0);

	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstancePossiblePlacements_v2(split, 9, NULL, NULL));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetGpuInstancePossiblePlacements_v2(split, 77, NULL, &count));
	WANT(NVML_SUCCESS, nvmlDeviceGetGpuInstancePossiblePlacements_v2(split, 9, NULL, &count));
	nvmlGpuInstancePlacement_t *places = malloc(count * sizeof *places);
	WANT(NVML_SUCCESS, nvmlDeviceGetGpuInstancePossiblePlacements_v2(split, 9, places, &count));
	CHECK(count == 2 && places[1].start == 4 && places[1].size == 4);
	free(places);

	nvmlGpuInstance_t g, *list = malloc(2 * sizeof *list);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceCreateGpuInstanceWithPlacement(split, 9, NULL, &g));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceCreateGpuInstanceWithPlacement(split, 9, &at, NULL));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceCreateGpuInstanceWithPlacement(split, 77, &at, &g));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceCreateGpuInstanceWithPlacement(split, 9, &wrong, &g));
	WANT(NVML_ERROR_INSUFFICIENT_RESOURCES, nvmlDeviceCreateGpuInstanceWithPlacement(split, 9, &taken, &g));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceCreateGpuInstanceWithPlacement(whole, 9, &at, &g));
	WANT(NVML_SUCCESS, nvmlDeviceCreateGpuInstanceWithPlacement(split, 9, &at, &g));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstances(split, 9, NULL, &count));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstances(split, 77, list, &count));
	WANT(NVML_SUCCESS, nvmlDeviceGetGpuInstances(split, 9, list, &count));
	CHECK(count == 1 && memcmp(&list[0], &g, sizeof g) == 0);
	WANT(NVML_SUCCESS, nvmlDeviceGetGpuInstances(whole, 9, list, &count));
	CHECK(count == 0);
	free(list);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetInfo(g, NULL));
	WANT(NVML_SUCCESS, nvmlGpuInstanceGetInfo(g, &info));
	CHECK(info.profileId == 9 && info.placement.start == 4);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstanceById(split, info.id, NULL));
	WANT(NVML_ERROR_NOT_FOUND, nvmlDeviceGetGpuInstanceById(split, ~0U, &g));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetGpuInstanceById(whole, info.id, &g));
	WANT(NVML_SUCCESS, nvmlDeviceGetGpuInstanceById(split, info.id, &g));

	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetComputeInstanceProfileInfoV(g, 0, 0, NULL));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetComputeInstanceProfileInfoV(g, 0, 1, &kind));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlGpuInstanceGetComputeInstanceProfileInfoV(g, 4, 0, &kind));
	WANT(NVML_SUCCESS, nvmlGpuInstanceGetComputeInstanceProfileInfoV(g, 0, 0, &kind));
	CHECK(kind.instanceCount == 3 && strcmp(kind.name, "MIG 1c.3g.71gb") == 0);
	nvmlComputeInstance_t p, q, *parts = malloc(3 * sizeof *parts);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceCreateComputeInstance(g, 0, NULL));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlGpuInstanceCreateComputeInstance(g, 77, &p));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceCreateComputeInstanceWithPlacement(g, 0, NULL, &p));
	WANT(NVML_ERROR_INSUFFICIENT_RESOURCES, nvmlGpuInstanceCreateComputeInstanceWithPlacement(g, 0, &beyond, &p));
	WANT(NVML_SUCCESS, nvmlGpuInstanceCreateComputeInstance(g, 0, &p));
	WANT(NVML_ERROR_INSUFFICIENT_RESOURCES, nvmlGpuInstanceCreateComputeInstanceWithPlacement(g, 0, &first, &q));
	WANT(NVML_SUCCESS, nvmlGpuInstanceCreateComputeInstance(g, 0, &q));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetComputeInstances(g, 0, NULL, &count));
	WANT(NVML_SUCCESS, nvmlGpuInstanceGetComputeInstances(g, 0, parts, &count));
	CHECK(count == 2);
	free(parts);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlComputeInstanceGetInfo_v2(q, NULL));
	WANT(NVML_SUCCESS, nvmlComputeInstanceGetInfo_v2(q, &part_info));
	CHECK(part_info.id == 1 && part_info.placement.start == 1 && part_info.placement.size == 1);
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlGpuInstanceGetComputeInstanceById(g, 1, NULL));
	WANT(NVML_ERROR_NOT_FOUND, nvmlGpuInstanceGetComputeInstanceById(g, ~0U, &q));
	WANT(NVML_SUCCESS, nvmlGpuInstanceGetComputeInstanceById(g, 1, &q));

	nvmlDevice_t device;
	WANT(NVML_SUCCESS, nvmlDeviceGetMigDeviceHandleByIndex(split, 5, &device));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetGpuInstanceId(device, NULL));
	WANT(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetGpuInstanceId(split, &id));
	WANT(NVML_SUCCESS, nvmlDeviceGetGpuInstanceId(device, &id));
	CHECK(id == info.id);
	WANT(NVML_SUCCESS, nvmlDeviceGetComputeInstanceId(device, &id));
	CHECK(id == 1);

	WANT(NVML_ERROR_IN_USE, nvmlGpuInstanceDestroy(g));
	WANT(NVML_SUCCESS, nvmlComputeInstanceDestroy(q));
	WANT(NVML_ERROR_INVALID_ARGUMENT, nvmlComputeInstanceDestroy(q));
	WANT(NVML_SUCCESS, nvmlComputeInstanceDestroy(p));
	WANT(NVML_SUCCESS, nvmlGpuInstanceDestroy(g));
	no_instance(g, p, NVML_ERROR_INVALID_ARGUMENT);
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
	nvmlGpuInstance_t no_gpu_instance = {NULL};
	nvmlComputeInstance_t no_part = {NULL};
	memset(&none, 0, sizeof none);
	memset(&wild, 0x5a, sizeof wild);

	WANT(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	WANT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
	WANT(NVML_ERROR_UNINITIALIZED, nvmlSystemGetDriverVersion(text, sizeof text));
	WANT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetComputeRunningProcesses_v3(none, &count, NULL));
	lookups(NVML_ERROR_UNINITIALIZED, NVML_ERROR_UNINITIALIZED, &d);
	each(none, 1, NVML_ERROR_UNINITIALIZED);
	change(none, NVML_ERROR_UNINITIALIZED);
	no_instance(no_gpu_instance, no_part, NVML_ERROR_UNINITIALIZED);

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
	no_instance(no_gpu_instance, no_part, NVML_ERROR_INVALID_ARGUMENT);
	instances(d, split);

	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, thread, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	WANT(NVML_SUCCESS, nvmlShutdown());
	WANT(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	return 0;
}
