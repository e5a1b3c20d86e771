// Sixteen floats at a time: the only vectors that the kernels know. Every order of summation of this library is in
// here or in a loop over absolute indices, so that results do not depend on what else is computed.
//
// Each library is built for one instruction set, from the same sources; only the two headers that are included below
// name its instructions. A `count` says how many of the sixteen are meant, 16 or more all: the rest is read as zero
// and not written.
#ifndef HALOGEN_LANES_H
#define HALOGEN_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

typedef uint16_t bf16;
typedef uint16_t f16;

INLINE int least(int a, int b) { return a < b ? a : b; }

#ifdef HALOGEN_AVX2
#include "lanes_avx2.h"
#else
#include "lanes_avx512.h"
#endif

// e to the x, for x <= 0; relative error below 2e-7. 2^n * e^r with |r| <= ln(2) / 2 (Cody and Waite 1980).
INLINE f32s exp_lanes(f32s x) {
    x = larger(x, everywhere(-104.0f));  // e^-104 is below every float; -inf goes this way too
    const f32s n = nearest(multiply(x, everywhere(1.44269504f)));
    f32s r = multiply_subtract(n, everywhere(0.693359375f), x);
    r = multiply_subtract(n, everywhere(-2.12194440e-4f), r);
    f32s p = everywhere(1.9875691500e-4f);
    p = multiply_add(p, r, everywhere(1.3981999507e-3f));
    p = multiply_add(p, r, everywhere(8.3334519073e-3f));
    p = multiply_add(p, r, everywhere(4.1665795894e-2f));
    p = multiply_add(p, r, everywhere(1.6666665459e-1f));
    p = multiply_add(p, r, everywhere(5.0000001201e-1f));
    p = multiply_add(p, multiply(r, r), add(r, everywhere(1.0f)));
    return times_power_of_two(p, n);
}

// x / (1 + e^-x), with e^-|x| so that nothing overflows.
INLINE f32s silu(f32s x) {
    const f32s one = everywhere(1.0f), decay = exp_lanes(minus_magnitude(x));
    return multiply(x, divide(where_negative(x, decay, one), add(one, decay)));
}

// Elements first .. first + 15 of an array of bfloat16 or float32.
INLINE f32s load_any(const void *array, ptrdiff_t first, int count, bool is_bf16) {
    return is_bf16 ? load_bf16((const bf16 *)array + first, count) : load((const float *)array + first, count);
}

INLINE void store_any(void *array, ptrdiff_t first, int count, f32s x, bool is_bf16) {
    if (is_bf16) store_bf16((bf16 *)array + first, count, x);
    else store((float *)array + first, count, x);
}

#endif
