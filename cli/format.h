/* Numbers for people, both ways: counts, sizes and durations; and a name that several commands
 * take. */
#ifndef RF_CLI_FORMAT_H
#define RF_CLI_FORMAT_H

#include <ringfold/comm.h>
#include <ringfold/error.h>
#include <stdint.h>

enum { FORMAT_MAX = 32 };

/* These write into `out` and return it. 1234567 -> "1,234,567". */
const char *format_count(char out[FORMAT_MAX], uint64_t count);

/* 1536 -> "1.50 KiB", 512 -> "512 B". */
const char *format_bytes(char out[FORMAT_MAX], uint64_t bytes);

/* 0.00042 -> "420us", 0.31 -> "310ms", 12.3 -> "12.3s", 7560 -> "2h06m", 200000 -> "2d07h". */
const char *format_duration(char out[FORMAT_MAX], double seconds);

/* "4096", "256M", "1KiB", "1.5GB": K, M, G, T and KiB … TiB count in 1024s, kB, MB, GB, TB in
 * 1000s. RF_EINVAL for anything else, and for what does not fit into 63 bits. *out is untouched
 * then. */
RF_MUST_CHECK int parse_bytes(const char *text, uint64_t *out);

/* "500ms", "3s", "1.5m", "2h": a unit is needed. RF_EINVAL otherwise, and beyond INT_MAX
 * milliseconds. */
RF_MUST_CHECK int parse_duration_ms(const char *text, int *out);

/* "5", "0.5": seconds, more than 0 and less than a day; at least 1 ms. RF_EINVAL otherwise. */
RF_MUST_CHECK int parse_seconds_ms(const char *text, int *out);

/* "auto", "shm" or "tcp"; RF_EINVAL otherwise, and *out is untouched then. */
RF_MUST_CHECK int parse_transport(const char *text, enum rf_transport *out);

/* A whole decimal number within [least, most], nothing before or after it. */
RF_MUST_CHECK int parse_int(const char *text, long least, long most, int *out);

#endif
