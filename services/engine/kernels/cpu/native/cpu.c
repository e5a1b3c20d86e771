// Compiled for any x86: it is asked before the rest of the library may run.
#include "cpu.h"

#include <cpuid.h>
#include <stdbool.h>

#define LEAF1_ECX (1u << 12 | 1u << 28 | 1u << 29)  // FMA, AVX, F16C
#define XSAVE_IN_USE (1u << 27)                     // OSXSAVE: XCR0 can be read
#ifdef HALOGEN_AVX2
#define LEAF7_EBX (1u << 5)  // AVX2
#define LEAF7_1_EAX 0u
#define XCR0 0x06u  // SSE and AVX registers
#else
#define LEAF7_EBX (1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31)  // AVX2; AVX-512 F, DQ, BW, VL
#define LEAF7_1_EAX (1u << 5)                                          // AVX-512 BF16
#define XCR0 0xe6u  // SSE, AVX and mask registers, upper halves, registers 16 to 31
#endif

static uint32_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

void halogen_read_cpu(struct halogen_cpu *cpu) {
    uint32_t eax, ebx, ecx, edx;
    *cpu = (struct halogen_cpu){0};
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) cpu->leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        cpu->leaf7_ebx = ebx;
        if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) cpu->leaf7_1_eax = eax;
    }
    if (cpu->leaf1_ecx & XSAVE_IN_USE) cpu->xcr0 = read_xcr0();
}

static bool has(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

int32_t halogen_runs_on(const struct halogen_cpu *cpu) {
    return has(cpu->leaf1_ecx, LEAF1_ECX | XSAVE_IN_USE) && has(cpu->leaf7_ebx, LEAF7_EBX) &&
           has(cpu->leaf7_1_eax, LEAF7_1_EAX) && has(cpu->xcr0, XCR0);
}
