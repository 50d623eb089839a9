// A libnvidia-ml.so.1 of two GPUs that fails as it is told: FAULT=KIND:FUNCTION[:GPU].
// KIND is `hang`, `crash`, `abort`, `exit`, or an error code; FUNCTION may be `load`. With `slow`
// every function takes a quarter of a second more.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

static int fault(const char *function, int gpu) {
    const char *said = getenv("FAULT");
    if (said == nullptr) return 0;
    std::string kind(said), name, which;
    if (kind == "slow") usleep(250000);
    size_t colon = kind.find(':');
    name = kind.substr(colon + 1);
    kind = kind.substr(0, colon);
    if ((colon = name.find(':')) != std::string::npos) {
        which = name.substr(colon + 1);
        name = name.substr(0, colon);
    }
    if (name != function || (!which.empty() && atoi(which.c_str()) != gpu)) return 0;
    if (kind == "hang") for (;;) pause();
    if (kind == "crash") raise(SIGSEGV);
    if (kind == "abort") abort();
    if (kind == "exit") _exit(0);
    return atoi(kind.c_str());
}

static int index_of(void *gpu) { return (int)((size_t)gpu - 1); }

__attribute__((constructor)) static void load() { fault("load", -1); }

struct Memory { unsigned long long total, free, used; };
struct Memory2 { unsigned int version; unsigned long long total, reserved, free, used; };

#define MAY_FAIL(gpu) \
    if (int code = fault(__func__, gpu)) return code

extern "C" {
int nvmlInitWithFlags(unsigned int) { MAY_FAIL(-1); return 0; }
int nvmlShutdown() { MAY_FAIL(-1); return 0; }
const char *nvmlErrorString(int) { return "an error of the fake driver"; }
int nvmlSystemGetDriverVersion(char *text, unsigned int n) { MAY_FAIL(-1); snprintf(text, n, "580.1"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { MAY_FAIL(-1); *version = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { MAY_FAIL(-1); *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu) {
    MAY_FAIL((int)index);
    *gpu = (void *)(size_t)(index + 1);
    return 0;
}
int nvmlDeviceGetName(void *gpu, char *text, unsigned int n) {
    MAY_FAIL(index_of(gpu));
    snprintf(text, n, "NVIDIA H200");
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *gpu, Memory2 *memory) {
    MAY_FAIL(index_of(gpu));
    memory->total = 150754820096ULL;
    memory->reserved = 644939776ULL;
    memory->free = 150109880320ULL;
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void *gpu, void *, unsigned int *level) {
    MAY_FAIL(index_of(gpu));
    *level = 10;
    return 0;
}
}
