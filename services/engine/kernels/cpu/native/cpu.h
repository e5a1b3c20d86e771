#ifndef HALOGEN_CPU_H
#define HALOGEN_CPU_H

#include <stdint.h>

// What tells which instructions can be used: registers of CPUID by leaf, and which registers the operating system keeps.
struct halogen_cpu {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_1_eax, xcr0;
};

// Asks this CPU.
void halogen_read_cpu(struct halogen_cpu *cpu);

// Whether this library's code runs on such a CPU.
int32_t halogen_runs_on(const struct halogen_cpu *cpu);

#endif
