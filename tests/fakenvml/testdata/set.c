/* Sets two things on the first GPU with as few system calls as it takes. */
#include <nvml.h>

int main(void)
{
	nvmlDevice_t d;
	return nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &d) || nvmlDeviceSetPowerManagementLimit(d, 300000) ||
	       nvmlDeviceSetComputeMode(d, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS) || nvmlShutdown();
}
