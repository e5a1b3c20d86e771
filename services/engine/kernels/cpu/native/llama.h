// The whole of a decoder's step behind one call: a plain C interface, mirrored in library.py.
#ifndef HALOGEN_LLAMA_H
#define HALOGEN_LLAMA_H

#include <stdint.h>

struct team;  // see team.h

// Matrices are [out, in], contiguous, in bfloat16 or float32, or packed (see packed.h) but for the embedding;
// qkv_bias is null in a model that has none.
struct halogen_layer {
    const void *attention_norm, *qkv, *qkv_bias, *output, *mlp_norm, *gate_up, *down;
};

struct halogen_model {
    const void *embedding, *norm, *head;
    const struct halogen_layer *layers;
    const float *cos, *sin;  // [positions, head_dim / 2]
    int32_t layer_count, hidden, intermediate, heads, kv_heads, head_dim, vocabulary, is_bf16;
    int32_t is_packed;
    int32_t kv_kind;         // enum kv_kind of attention.h
    int32_t kv_head_bytes;   // of the keys, and of the values, that one block has for one kv head
    float eps;
};

// See ragged.py.
struct halogen_step {
    const int32_t *token_ids, *positions, *rows, *tables, *sample_rows;
    void *blocks;         // [blocks, layers, kv_heads, 2, kv_head_bytes]
    int64_t block_bytes;
    int32_t tokens, sequences, table_width, samples;
};

// Bytes of a layer, a model or a step, 0 to 2: whoever mirrors them compares before the first call.
int64_t halogen_struct_bytes(int32_t which);

// Bytes of scratch that halogen_step_llama needs.
int64_t halogen_scratch_bytes(const struct team *team, const struct halogen_model *model,
                              const struct halogen_step *step);

// Computes a step; logits are [samples, vocabulary]. Scratch is aligned to 64 bytes.
void halogen_step_llama(struct team *team, const struct halogen_model *model, const struct halogen_step *step,
                        void *scratch, float *logits);

// y = x @ w.T, or y += it, or y = silu(first half) * second half: for tests and measurements.
void halogen_linear(struct team *team, const void *x, const void *w, void *y, int32_t rows, int32_t columns,
                    int32_t inner, int32_t is_bf16, int32_t target);

// The same with packed weights, x and y row-major as before. Scratch has place for x, and for y where it is gated,
// each row with an even number of elements.
void halogen_packed_linear(struct team *team, const void *x, const void *w, void *y, int32_t rows, int32_t columns,
                           int32_t inner, int32_t target, void *scratch);

// The attention of one layer alone, for tests: qkv is [tokens, (heads + 2 * kv_heads) * head_dim]; mixed is
// [tokens, heads * head_dim] in the weights' type. Of the model, sizes, types, cos and sin are looked at.
void halogen_attend(struct team *team, const struct halogen_model *model, const struct halogen_step *step,
                    const float *qkv, void *mixed, void *scratch);

#endif
