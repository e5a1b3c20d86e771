// Products with row-major weights used in place. Each result is a sum over the inner dimension in sixteen
// lanes, added up by one fixed tree: the same bits for every number of rows and every place among them.
#include "linear.h"

#include "lanes.h"

#define CHUNK_COLUMNS 32  // what a thread takes at a time
#define SIDE_BY_SIDE (REGISTERS >= 32 ? 4 : 1)  // columns of which four sums each fit the registers
// How far ahead of its use memory is asked for, as measured for each set of instructions.
#define AHEAD_BYTES(is_bf16) (REGISTERS >= 32 || (is_bf16) ? 2048 : 1024)
#define PANEL_BYTES (192 * 1024)  // rows of x that stay in the second-level cache meanwhile

INLINE f32s dot_step(f32s sum, const void *x, const void *w, bool is_bf16) {
    if (is_bf16) return dot_pairs(sum, pairs_of(load_words(x)), pairs_of(load_words(w)));
    return multiply_add(load_all(x), load_all(w), sum);
}

INLINE f32s dot_tail(f32s sum, const void *x, const void *w, int left, bool is_bf16) {
    if (is_bf16) return dot_pairs(sum, pairs_of(load_bf16_words(x, left)), pairs_of(load_bf16_words(w, left)));
    return multiply_add(load(x, left), load(w, left), sum);
}

// Adds up rows of x times rows of w side by side, each part of either read once. The sums are its own
// until the end, and so in registers: what `out` might be seen through is stored with every step. As many bytes of w
// from `next` on are fetched, unless that is null.
INLINE void dot_block(const char *x, const char *w, const char *next, int rows, int columns, int inner, bool is_bf16,
                      f32s *out) {
    const int width = is_bf16 ? 2 : 4, step = 64 / width;
    const ptrdiff_t row_bytes = (ptrdiff_t)inner * width;
    f32s sums[4][4];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) sums[i][j] = zeros();
    int k = 0;
    for (; k + step <= inner; k += step) {
        const ptrdiff_t at = (ptrdiff_t)k * width;
        for (int j = 0; j < columns; j++) {
            if (next) fetch(next + columns * at + j * 64);
            for (int i = 0; i < rows; i++)
                sums[i][j] = dot_step(sums[i][j], x + i * row_bytes + at, w + j * row_bytes + at, is_bf16);
        }
    }
    if (k < inner)
        for (int j = 0; j < columns; j++)
            for (int i = 0; i < rows; i++)
                sums[i][j] = dot_tail(sums[i][j], x + i * row_bytes + (ptrdiff_t)k * width,
                                      w + j * row_bytes + (ptrdiff_t)k * width, inner - k, is_bf16);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) out[4 * i + j] = sums[i][j];
}

// Weights that nobody has read in this step are read in the order of their addresses: memory gives them twice as
// fast. While they are used again, the next ones are fetched.
enum access { STREAM, FETCH_NEXT, CACHED };

// Products of up to 4 rows of x with up to 4 rows of w.
INLINE void tile(const char *x, const char *w, float *y, ptrdiff_t stride, int rows, int columns, int inner,
                 bool is_bf16, bool add_to, enum access access) {
    const ptrdiff_t row_bytes = (ptrdiff_t)inner * (is_bf16 ? 2 : 4);
    const int beside = columns < 4 || access == STREAM ? 1 : SIDE_BY_SIDE;
    f32s sums[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = zeros();
    for (int j = 0; j < columns; j += beside) {
        const char *right = w + j * row_bytes, *next = NULL;
        if (access == FETCH_NEXT) next = right + 4 * row_bytes;
        if (access == STREAM && rows > 2) next = right + AHEAD_BYTES(is_bf16);
        dot_block(x, right, next, rows, beside, inner, is_bf16, &sums[0][j]);
    }
    float all[16];
    sum_tile(sums, all);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float *out = y + i * stride + j;
            *out = add_to ? *out + all[4 * i + j] : all[4 * i + j];
        }
}

// One panel of rows with a chunk of columns; whole tiles have their sizes known to the compiler.
INLINE void panel(const char *x, const char *w, float *y, ptrdiff_t stride, int rows, int columns, int inner,
                  bool is_bf16, bool add) {
    const ptrdiff_t row_bytes = (ptrdiff_t)inner * (is_bf16 ? 2 : 4);
    for (int j = 0; j < columns; j += 4) {
        const char *right = w + j * row_bytes;
        const int wide = least(4, columns - j);
        for (int i = 0; i < rows; i += 4) {
            const char *left = x + i * row_bytes;
            float *out = y + i * stride + j;
            const int tall = least(4, rows - i);
            if (wide < 4) tile(left, right, out, stride, tall, wide, inner, is_bf16, add, STREAM);
            else if (tall == 4 && i == 4) tile(left, right, out, stride, 4, 4, inner, is_bf16, add, FETCH_NEXT);
            else if (tall == 4 && i > 4) tile(left, right, out, stride, 4, 4, inner, is_bf16, add, CACHED);
            else if (tall == 4) tile(left, right, out, stride, 4, 4, inner, is_bf16, add, STREAM);
            else if (tall == 3) tile(left, right, out, stride, 3, 4, inner, is_bf16, add, STREAM);
            else if (tall == 2) tile(left, right, out, stride, 2, 4, inner, is_bf16, add, STREAM);
            else tile(left, right, out, stride, 1, 4, inner, is_bf16, add, STREAM);
        }
    }
}

static void panel_bf16(const char *x, const char *w, float *y, ptrdiff_t stride, int rows, int columns, int inner,
                       bool add) {
    if (add) panel(x, w, y, stride, rows, columns, inner, true, true);
    else panel(x, w, y, stride, rows, columns, inner, true, false);
}

static void panel_f32(const char *x, const char *w, float *y, ptrdiff_t stride, int rows, int columns, int inner,
                      bool add) {
    if (add) panel(x, w, y, stride, rows, columns, inner, false, true);
    else panel(x, w, y, stride, rows, columns, inner, false, false);
}

static void any_panel(const char *x, const char *w, float *y, ptrdiff_t stride, int rows, int columns, int inner,
                      bool is_bf16, bool add) {
    if (is_bf16) panel_bf16(x, w, y, stride, rows, columns, inner, add);
    else panel_f32(x, w, y, stride, rows, columns, inner, add);
}

// silu(gate) * up for `columns` columns of a row.
static void gate_row(const float *gate, const float *up, void *y, int columns, bool is_bf16) {
    for (int j = 0; j < columns; j += LANES) {
        const int left = columns - j;
        store_any(y, j, left, multiply(silu(load(gate + j, left)), load(up + j, left)), is_bf16);
    }
}

// Columns first .. first + columns - 1 of gate and of up, and what is made of them.
static void gated_chunk(const char *x, const char *w, void *y, int rows, int half, int first, int columns,
                        int inner, int panel_rows, bool is_bf16) {
    enum { ROWS = 64 };
    float both[ROWS][2 * CHUNK_COLUMNS];
    const int width = is_bf16 ? 2 : 4;
    const ptrdiff_t row_bytes = (ptrdiff_t)inner * width;
    panel_rows = least(panel_rows, ROWS);
    for (int i = 0; i < rows; i += panel_rows) {
        const int some = least(panel_rows, rows - i);
        const char *left = x + i * row_bytes;
        any_panel(left, w + first * row_bytes, both[0], 2 * CHUNK_COLUMNS, some, columns, inner, is_bf16, false);
        any_panel(left, w + (half + first) * row_bytes, both[0] + CHUNK_COLUMNS, 2 * CHUNK_COLUMNS, some, columns,
                  inner, is_bf16, false);
        for (int r = 0; r < some; r++)
            gate_row(both[r], both[r] + CHUNK_COLUMNS,
                     (char *)y + ((ptrdiff_t)(i + r) * half + first) * width, columns, is_bf16);
    }
}

// Columns first .. end - 1 of all rows, stored or added.
static void plain_chunk(const char *x, const char *w, float *y, int rows, int columns, int first, int end, int inner,
                        int panel_rows, bool is_bf16, bool add) {
    const ptrdiff_t row_bytes = (ptrdiff_t)inner * (is_bf16 ? 2 : 4);
    for (int i = 0; i < rows; i += panel_rows)
        any_panel(x + i * row_bytes, w + first * row_bytes, y + (ptrdiff_t)i * columns + first, columns,
                  least(panel_rows, rows - i), end - first, inner, is_bf16, add);
}

void linear(struct team *team, const void *x, const void *w, void *y, int rows, int columns, int inner,
            bool is_bf16, enum target target) {
    const int fitting = PANEL_BYTES / (inner * (is_bf16 ? 2 : 4)), panel_rows = fitting < 4 ? 4 : fitting / 4 * 4;
    const int wide = target == GATED ? columns / 2 : columns;
    int first, end;
    while (claim(team, wide, CHUNK_COLUMNS, &first, &end)) {
        if (target == GATED) gated_chunk(x, w, y, rows, wide, first, end - first, inner, panel_rows, is_bf16);
        else plain_chunk(x, w, y, rows, columns, first, end, inner, panel_rows, is_bf16, target == ADD);
    }
    meet(team);
}
