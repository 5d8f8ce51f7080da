/* How checkpoints look on the screen and as JSON. */
#ifndef RF_CLI_CKPT_SHOW_H
#define RF_CLI_CKPT_SHOW_H

#include <jansson.h>
#include <ringfold/ckpt.h>

enum { CKPT_TIME_MAX = 32 };

/* "2026-11-30 14:10:00", local time; "-" for 0. */
const char *ckpt_time(char out[CKPT_TIME_MAX], int64_t time_s);

void ckpt_list_head(void);
void ckpt_list_line(const struct rf_ckpt_info *info);

/* One line each for the sums, and for a root with two histories. */
void ckpt_list_foot(const int counts[3], const char *newest, const struct rf_ckpt_parting *parting);

void ckpt_show(const struct rf_ckpt *ckpt);

/* New references; NULL without memory. */
json_t *ckpt_info_json(const struct rf_ckpt_info *info);
json_t *ckpt_parting_json(const struct rf_ckpt_parting *parting);
json_t *ckpt_json(const struct rf_ckpt *ckpt);

#endif
