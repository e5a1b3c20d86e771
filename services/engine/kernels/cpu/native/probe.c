#include "probe.h"

#include <stdatomic.h>

#include "team.h"

#define PIECE_BYTES (256 * 1024)
#define AHEAD_BYTES 2048
#define SECOND_LEVEL 2  // of the caches, where it is to come

struct reading {
    const char *memory;
    int pieces;
    _Atomic uint64_t seen;
};

typedef uint64_t two __attribute__((vector_size(16)));

static uint64_t read_piece(const char *piece) {
    two seen[4] = {{0}};
    for (int at = 0; at < PIECE_BYTES; at += 64) {
        __builtin_prefetch(piece + at + AHEAD_BYTES, 0, SECOND_LEVEL);
        for (int i = 0; i < 4; i++) seen[i] |= ((const two *)(piece + at))[i];
    }
    const two all = seen[0] | seen[1] | seen[2] | seen[3];
    return all[0] | all[1];
}

static void read_share(struct team *team, int member, void *argument) {
    struct reading *reading = argument;
    int piece, end;
    (void)member;
    while (claim(team, reading->pieces, 1, &piece, &end))
        atomic_fetch_or(&reading->seen, read_piece(reading->memory + (int64_t)piece * PIECE_BYTES));
    meet(team);
}

uint64_t halogen_read(struct team *team, const void *memory, int64_t bytes) {
    struct reading reading = {.memory = memory, .pieces = (int)(bytes / PIECE_BYTES)};
    run_team(team, read_share, &reading);
    return reading.seen;
}
