#ifndef HALOGEN_ATTENTION_H
#define HALOGEN_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "team.h"

#define BLOCK_TOKENS 16
#define TILE_ROWS 12  // queries times heads of a group that are computed together, unless the group is larger

// What keys and values are stored in; mirrored in native_llama.py.
enum kv_kind { KV_BF16, KV_F32, KV_F16, KV_I8 };

// Keys and values of one layer in blocks of 16 tokens. Within a block, each kv head has its keys and right behind them
// its values, head_bytes each: keys [head_dim][16], values [16][head_dim]. Behind those in int8 stand 16 scales in
// float32, one for each token; an element is worth its number times the scale. bfloat16 lies in pairs,
// [head_dim / 2][16][2] and [8][head_dim][2], where the lanes multiply those.
struct cache {
    char *keys;             // of block 0
    ptrdiff_t block_bytes;  // from one block to the next
    ptrdiff_t head_bytes;   // from a head's keys in a block to its values
    int heads, kv_heads, head_dim;
    enum kv_kind kind;
    bool mixes_bf16;  // what comes out is bfloat16, else float32
};

// Tokens of sequences, end to end; see ragged.py.
struct tokens {
    int count, sequences, table_width;
    const int32_t *positions, *rows, *tables;
};

// A few neighbouring queries of one sequence.
struct tile {
    int first, count, sequence;
};

int tile_queries(const struct cache *cache);

// Cuts the step into tiles; returns how many. At most tokens->count.
int cut_tiles(const struct tokens *tokens, int queries, struct tile *tiles);

// Floats that each thread needs for attend().
size_t attend_scratch(const struct cache *cache, const struct tokens *tokens);

// The step's part in one layer: qkv is [tokens, (heads + 2 * kv_heads) * head_dim]; queries and mixed are
// [tokens, heads * head_dim], room for floats; cos and sin are [positions, head_dim / 2].
struct attention {
    const struct cache *cache;
    const struct tokens *tokens;
    const struct tile *tiles;
    int tile_count;
    const float *qkv, *cos, *sin;
    void *queries, *mixed;
};

// Turns q and k by position, stores k and v, and attends. Called by every member of a team, each with scratch of
// its own; ends with a barrier.
void attend(struct team *team, const struct attention *attention, float *scratch);

#endif
