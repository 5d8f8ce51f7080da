/* Medians and rows of slow units. With two members the median is the faster one: of an even number
 * of times the lower middle one counts, of rates the upper. */
#include "member/slow.h"

#include "base/assert.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A member's time for a shard; 0 where it says nothing. */
static double time_of(const struct rf__step_report *report) {
    return report->healed && report->shards ? report->compute_s / report->shards : 0;
}

static double rate_of(const struct rf__step_report *report, int count) {
    return report->link_peer >= 0 && report->link_peer < count ? report->link_bytes_s : 0;
}

static double median_time(struct rf__slow *slow, const struct rf__step_report *reports, int count) {
    size_t n = 0;
    for (int r = 0; r < count; r++) {
        if (time_of(&reports[r]) > 0) {
            slow->scratch[n++] = time_of(&reports[r]);
        }
    }
    qsort(slow->scratch, n, sizeof *slow->scratch, compare);
    return n ? slow->scratch[(n - 1) / 2] : 0;
}

static double median_rate(struct rf__slow *slow, const struct rf__step_report *reports, int count) {
    size_t n = 0;
    for (int r = 0; r < count; r++) {
        if (rate_of(&reports[r], count) > 0) {
            slow->scratch[n++] = rate_of(&reports[r], count);
        }
    }
    qsort(slow->scratch, n, sizeof *slow->scratch, compare);
    return n ? slow->scratch[n / 2] : 0;
}

/* How often `rank` is at an end of a link that is slow. */
static int shares(const struct rf__step_report *reports, int count, double median, int rank) {
    int share = 0;
    for (int r = 0; r < count; r++) {
        double rate = rate_of(&reports[r], count);
        bool is_slow = rate > 0 && median >= RF__SLOW_RATIO * rate;
        share += is_slow && (r == rank || reports[r].link_peer == rank);
    }
    return share;
}

/* The rank to blame for slow links, and the ratio of the slowest that it is part of; -1: none is.
 */
static int blame(const struct rf__step_report *reports, int count, double median, double *ratio) {
    int worst = -1;

    *ratio = 0;
    for (int r = 0; r < count; r++) {
        double rate = rate_of(&reports[r], count);
        if (rate > 0 && median / rate > *ratio) {
            *ratio = median / rate;
            worst = r;
        }
    }
    if (worst < 0 || *ratio < RF__SLOW_RATIO) {
        return -1;
    }
    int peer = reports[worst].link_peer;
    bool own = shares(reports, count, median, worst) > shares(reports, count, median, peer);
    return own ? worst : peer;
}

static struct rf__slow_record *find(struct rf__slow *slow, int id) {
    for (int i = 0; i < slow->count; i++) {
        if (slow->record[i].id == id) {
            return &slow->record[i];
        }
    }
    return NULL;
}

/* Keeps the records of those that are still here and makes new ones for the others, in rank order:
 * where an id has one, it changes places with the one at its rank. */
static void follow(struct rf__slow *slow, const int *ids, int count) {
    for (int r = 0; r < count; r++) {
        struct rf__slow_record *found = find(slow, ids[r]);
        if (!found) { /* the one in its place may still be wanted by a later rank */
            RF_ASSERT(slow->count < 2 * slow->capacity);
            found = &slow->record[slow->count++];
            *found = (struct rf__slow_record){.id = ids[r]};
        }
        struct rf__slow_record held = slow->record[r];
        slow->record[r] = *found;
        *found = held;
    }
    slow->count = count;
}

/* One more unit in the row, or its end. */
static void count(bool goes_on, double took, int *units, double *seconds) {
    *units = goes_on ? *units + 1 : 0;
    *seconds = goes_on ? *seconds + took : 0;
}

static void judge(const struct rf__slow *slow, struct rf__slow_record *record, int rank,
                  enum rf__slow_part part, double ratio, double took, struct rf__slow_news *out) {
    bool is_slow = ratio >= RF__SLOW_RATIO;
    int window = slow->window > 0 ? slow->window : 1;

    count(is_slow, took, &record->units[part], &record->took[part]);
    count(slow->evict > 0 && ratio >= slow->evict, took, &record->evict_units[part],
          &record->evict_took[part]);
    record->told[part] = record->told[part] && is_slow;
    if (record->units[part] >= RF__SLOW_UNITS && record->took[part] >= RF__SLOW_LEAST_S &&
        !record->told[part] && out->told < 0) {
        record->told[part] = true;
        out->told = rank;
        out->part = part;
        out->ratio = ratio;
    }
    if (record->evict_units[part] >= window && record->evict_took[part] >= RF__SLOW_LEAST_S &&
        out->put_out < 0) {
        out->put_out = record->id;
    }
}

void rf__slow_observe(struct rf__slow *slow, const struct rf__step_report *reports, const int *ids,
                      int count, struct rf__slow_news *out) {
    double link_ratio = 0;

    RF_ASSERT(count >= 1 && count <= slow->capacity);
    *out = (struct rf__slow_news){.told = -1, .put_out = -1};
    follow(slow, ids, count);
    double time = median_time(slow, reports, count);
    int blamed = blame(reports, count, median_rate(slow, reports, count), &link_ratio);
    for (int r = 0; r < count; r++) {
        bool is_warm = slow->record[r].seen >= RF__SLOW_WARM_UP;
        slow->record[r].seen += !is_warm;
        double ratio = is_warm && time > 0 ? time_of(&reports[r]) / time : 0;
        judge(slow, &slow->record[r], r, RF__SLOW_PROCESSOR, ratio, reports[r].compute_s, out);
        judge(slow, &slow->record[r], r, RF__SLOW_LINK, is_warm && r == blamed ? link_ratio : 0,
              reports[r].comm_s, out);
    }
}
