/*
 * The calls that faults can name, without nvml, Device and _vN:
 * CALL(name, is about a GPU, numbers that it answers or sets, sets something).
 */
#ifndef FAKENVML_CALLS_H
#define FAKENVML_CALLS_H

#define CALLS(CALL) \
	CALL(Init, false, 0, false) \
	CALL(Shutdown, false, 0, false) \
	CALL(SystemGetDriverVersion, false, 0, false) \
	CALL(SystemGetNVMLVersion, false, 0, false) \
	CALL(SystemGetCudaDriverVersion, false, 1, false) \
	CALL(GetCount, false, 1, false) \
	CALL(GetHandleByIndex, true, 0, false) \
	CALL(GetHandleByUUID, true, 0, false) \
	CALL(GetHandleByPciBusId, true, 0, false) \
	CALL(GetIndex, true, 1, false) \
	CALL(GetUUID, true, 0, false) \
	CALL(GetName, true, 0, false) \
	CALL(GetMinorNumber, true, 1, false) \
	CALL(GetArchitecture, true, 1, false) \
	CALL(GetPciInfo, true, 0, false) \
	CALL(GetMemoryAffinity, true, 0, false) \
	CALL(GetCpuAffinity, true, 0, false) \
	CALL(GetCpuAffinityWithinScope, true, 0, false) \
	CALL(GetNumaNodeId, true, 1, false) \
	CALL(GetMigMode, true, 2, false) \
	CALL(GetMaxMigDeviceCount, true, 1, false) \
	CALL(GetMigDeviceHandleByIndex, true, 0, false) \
	CALL(GetDeviceHandleFromMigDeviceHandle, true, 0, false) \
	CALL(IsMigDeviceHandle, true, 1, false) \
	CALL(GetGpuInstanceId, true, 1, false) \
	CALL(GetComputeInstanceId, true, 1, false) \
	CALL(SetMigMode, true, 1, true) \
	CALL(GetGpuInstanceProfileInfoV, true, 0, false) \
	CALL(GetGpuInstancePossiblePlacements, true, 0, false) \
	CALL(GetGpuInstances, true, 0, false) \
	CALL(GetGpuInstanceById, true, 0, false) \
	CALL(CreateGpuInstanceWithPlacement, true, 2, true) \
	CALL(GpuInstanceGetInfo, true, 0, false) \
	CALL(GpuInstanceDestroy, true, 1, true) \
	CALL(GpuInstanceGetComputeInstanceProfileInfoV, true, 0, false) \
	CALL(GpuInstanceGetComputeInstances, true, 0, false) \
	CALL(GpuInstanceGetComputeInstanceById, true, 0, false) \
	CALL(GpuInstanceCreateComputeInstance, true, 2, true) \
	CALL(GpuInstanceCreateComputeInstanceWithPlacement, true, 2, true) \
	CALL(ComputeInstanceGetInfo, true, 0, false) \
	CALL(ComputeInstanceDestroy, true, 2, true) \
	CALL(GetPowerManagementLimit, true, 1, false) \
	CALL(SetPowerManagementLimit, true, 1, true) \
	CALL(GetPowerManagementLimitConstraints, true, 2, false) \
	CALL(GetPowerManagementDefaultLimit, true, 1, false) \
	CALL(GetEnforcedPowerLimit, true, 1, false) \
	CALL(GetPowerUsage, true, 1, false) \
	CALL(GetTotalEnergyConsumption, true, 1, false) \
	CALL(GetSupportedMemoryClocks, true, 0, false) \
	CALL(GetSupportedGraphicsClocks, true, 0, false) \
	CALL(SetGpuLockedClocks, true, 2, true) \
	CALL(ResetGpuLockedClocks, true, 2, true) \
	CALL(SetMemoryLockedClocks, true, 2, true) \
	CALL(ResetMemoryLockedClocks, true, 2, true) \
	CALL(GetApplicationsClock, true, 1, false) \
	CALL(SetApplicationsClocks, true, 2, true) \
	CALL(ResetApplicationsClocks, true, 2, true) \
	CALL(GetDefaultApplicationsClock, true, 1, false) \
	CALL(GetClockInfo, true, 1, false) \
	CALL(GetClock, true, 1, false) \
	CALL(GetMaxClockInfo, true, 1, false) \
	CALL(GetMinMaxClockOfPState, true, 2, false) \
	CALL(GetPersistenceMode, true, 1, false) \
	CALL(SetPersistenceMode, true, 1, true) \
	CALL(GetComputeMode, true, 1, false) \
	CALL(SetComputeMode, true, 1, true) \
	CALL(GetEccMode, true, 2, false) \
	CALL(GetRemappedRows, true, 0, false) \
	CALL(GetCurrentClocksEventReasons, true, 1, false) \
	CALL(GetCurrentClocksThrottleReasons, true, 1, false) \
	CALL(GetComputeRunningProcesses, true, 0, false) \
	CALL(GetGraphicsRunningProcesses, true, 0, false) \
	CALL(GetPerformanceState, true, 1, false) \
	CALL(GetUtilizationRates, true, 2, false) \
	CALL(GetTemperature, true, 1, false) \
	CALL(GetMemoryInfo, true, 0, false) \
	CALL(GetSamples, true, 0, false) \
	CALL(GetPcieReplayCounter, true, 1, false) \
	CALL(GetTotalEccErrors, true, 0, false) \
	CALL(GetFieldValues, true, 0, false)

#define CALL_ENUM(name, gpu, numbers, sets) CALL_##name,
enum call_name { CALLS(CALL_ENUM) CALL_COUNT };
#undef CALL_ENUM

struct call_kind {
	const char *name;
	_Bool gpu;
	unsigned int numbers;
	_Bool sets;
};

extern const struct call_kind call_kinds[CALL_COUNT];

#endif
