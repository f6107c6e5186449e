/* Stands in for NVIDIA's driver library where there is no GPU: three devices, of which the last tells neither power nor energy. */
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;

static char *UUIDS[] = {"GPU-aaaa", "GPU-bbbb", "GPU-cccc"};
static unsigned long long joules[3] = {5, 50, 500};
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

/* Handles are numbers from 1. */
static long number(void *device) { return (long)device - 1; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return getenv("NVML_BROKEN") ? 9 : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code ? "an error" : "none"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "570.1", size); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(long)(index + 1);
    return index < 3 ? OK : NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (long i = 0; i < 3; i++)
        if (!strcmp(uuid, UUIDS[i])) { *device = (void *)(i + 1); return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    strncpy(text, number(device) == 2 ? "Stand-in MIG" : "Stand-in", size);
    return OK;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, UUIDS[number(device)], size); return OK; }
int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz) { (void)device; *mhz = type == 1 ? 1590 : 1; return OK; }
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { (void)device; *mhz = type == 1 ? 1200 : 1; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { *mw = 70000; return number(device) == 2 ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) { rates->gpu = 40 + number(device); rates->memory = 1; return OK; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = 60000; return number(device) == 2 ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    static unsigned long long calls;
    (void)device;
    memory->total = 16ULL << 30;
    memory->used = (calls++ == 0 ? 3072ULL : 1024ULL) << 20;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    if (number(device) == 2) return NOT_SUPPORTED;
    *mj = 1000 * (joules[number(device)] += 7);
    return OK;
}
