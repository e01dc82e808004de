/* How tests steer the simulated accelerator and ask it what happened. C, so that Python's ctypes reaches it too.
 *
 * The functions are found by dlsym in the libcuda.so.1 that the process has loaded. Safe from several threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What happened since the start or the last sim_clear_counters(), and what there is now. All fields are 64 bits wide.
 */
struct sim_counters {
  uint64_t bytes_to_device, bytes_to_host, bytes_within_device;
  uint64_t copies_to_device, copies_to_host, copies_within_device;
  uint64_t pageable_copies, pageable_bytes;    /* of these, from or to memory that is not pinned */
  uint64_t link_ns_to_device, link_ns_to_host; /* time for which a link with a rate was busy */
  uint64_t copies_queued, copies_at_once_peak; /* queued: now, those being made included */
  uint64_t file_reads, file_writes, file_bytes_read, file_bytes_written; /* by cuFile */
  uint64_t pinned_bytes, pinned_bytes_peak;                              /* registered or allocated */
  uint64_t device_bytes, device_bytes_peak, managed_bytes;
  uint64_t streams, events, contexts, file_handles, file_buffers; /* that live now */
  uint64_t calls_after_fork;                                      /* in children of this process, never cleared */
  uint64_t violations;
  uint64_t contexts_made[16]; /* per device; never cleared */
};

/* The setting that $PENSTOCK_SIM_<NAME> makes at the start, by its name in small letters: sim_set("link",
 * "1000000000"). 0, or -1 for a name or value that does not exist. README.md lists them. */
int sim_set(const char* name, const char* value);
/* All settings as the environment has them; no failures, no violations, counters cleared, lost devices work again. */
void sim_reset(void);

/* Makes calls fail: "symbol:nth:error", the nth call from now (1 is the next); "symbol:nth+:error" all from that one
 * on. With ":async" a copy is queued and fails when it is made: its context is lost, all calls there give this error.
 * Several are separated by commas. NULL or "": no call fails any more. 0, or -1 for what can't be understood. */
int sim_fail(const char* what);
/* How often a symbol was called, failures included. */
uint64_t sim_calls(const char* symbol);

/* 1: queued work waits; 0: it goes on. Work begun before is finished. */
void sim_hold(int hold);

void sim_read_counters(struct sim_counters* counters);
void sim_clear_counters(void);

/* Processor time of the threads that make copies, since the start: a real device has none of it. */
uint64_t sim_copy_cpu_ns(void);

/* What was done wrong, one line each. Gives how many lines there are; the buffer (may be NULL) gets what fits, ended
 * by a zero. */
size_t sim_violations(char* buffer, size_t nbytes);
void sim_clear_violations(void);

/* What lives now, one line each; `kinds` is a sum of these. Memory pinned by a kept pool and the contexts of devices in
 * use live on rightly. */
#define SIM_DEVICE_MEMORY 1
#define SIM_PINNED_MEMORY 2
#define SIM_STREAMS 4
#define SIM_EVENTS 8
#define SIM_FILES 16 /* cuFile's handles and registered buffers */
#define SIM_CONTEXTS 32
size_t sim_leaks(int kinds, char* buffer, size_t nbytes);

/* Copies bytes of device memory without the driver and without a context: for asserting. 0, or -1 when it is none. */
int sim_peek(void* to, uint64_t address, size_t nbytes);
int sim_poke(uint64_t address, const void* from, size_t nbytes);

#ifdef __cplusplus
}
#endif
