/* A libnvidia-ml.so.1 with few calls, in the layout of nvml.h: what a tray's old or new driver would answer.
   Everything that is not here is a missing symbol to the binding, as with an older driver. */
#include <string.h>

typedef struct { unsigned int version; unsigned char uuid[16]; int status; unsigned int clique;
                 unsigned char state; unsigned int mask; unsigned char summary; } fabric_v3;
typedef struct { unsigned int version; unsigned char guid[16]; unsigned char chassis[16];
                 unsigned char slot, tray, host, peer, module; } platform_v2;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int field, scope; long long at, latency; int type, status;
                 union { double d; unsigned int u; unsigned long long ull; } value; } field_value;

int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "some error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned int size) { strncpy(text, "610.57.04", size); return 0; }
int nvmlSystemGetNVMLVersion(char *text, unsigned int size) { strncpy(text, "13.610.57.04", size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13030; return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    *handle = (void *)(long)(index + 1);
    return index == 1 ? 15 : 0;
}
int nvmlDeviceGetName(void *gpu, char *text, unsigned int size) { strncpy(text, "NVIDIA GB300", size); return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *gpu, memory_v2 *memory) {
    if (memory->version != 0x02000028) return 25;
    memory->total = 284208ULL << 20; memory->reserved = 947ULL << 20; memory->used = 12ULL << 20;
    return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void *gpu, fabric_v3 *info) {
    if (info->version != 0x03000028) return 25;
    memset((char *)info + 4, 0xEE, sizeof *info - 4); /* padding is not cleared */
    memset(info->uuid, 0xAB, 16);
    info->status = 0; info->clique = 32766; info->state = 3; info->mask = 0x1AA; info->summary = 1;
    return 0;
}
int nvmlDeviceGetPlatformInfo(void *gpu, platform_v2 *info) {
    if (info->version != 0x0200002c) return 25;
    memset(info->guid, 0x94, 16); /* no UTF-8 */
    memcpy(info->chassis, "1820000000001\0\0\0", 16);
    info->slot = 0x91; info->tray = 2; info->host = 1; info->peer = 1; info->module = 4;
    return 0;
}
int nvmlDeviceGetFieldValues(void *gpu, int count, field_value *values) {
    for (int i = 0; i < count; i++) {
        unsigned int field = values[i].field;
        values[i].type = 1;
        values[i].status = 0;
        values[i].value.ull = 0xFFFFFFFFFFFFFFFFULL;
        if (field == 91) values[i].value.u = 18;
        else if (field == 165) values[i].value.u = values[i].scope == 7 ? 3 : 1;
        else if (field == 164) values[i].value.u = 53125;
        else values[i].status = 3;
    }
    return 0;
}
