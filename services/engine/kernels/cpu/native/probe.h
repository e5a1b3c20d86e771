#ifndef HALOGEN_PROBE_H
#define HALOGEN_PROBE_H

#include <stdint.h>

struct team;  // see team.h

// Reads memory from its beginning to its end and does nothing with it: how fast a team could read weights. Reads
// whole pieces of 256 KiB; returns something of what is there, so that no compiler leaves it out.
uint64_t halogen_read(struct team *team, const void *memory, int64_t bytes);

#endif
