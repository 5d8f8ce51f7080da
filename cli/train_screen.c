/* The screen of `ringfold train`: whole lines that fit into 80 columns, and on a terminal one live
 * line below them. */
#include "format.h"
#include "report.h"
#include "train.h"
#include "train_bad.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_STEPS = 10, BAR = 20, COLUMNS = 79 };
static const double LINE_SECONDS = 10;
static const double REDRAW_SECONDS = 0.1;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void screen_init(struct train_screen *screen, const struct train_settings *settings, int size) {
    const char *term = getenv("TERM");

    *screen = (struct train_screen){.out = stdout, .quiet = settings->quiet, .size = size};
    screen->live = !settings->quiet && isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    screen->began = now_s();
    screen->best = NAN;
}

void screen_clear(struct train_screen *screen) {
    if (screen->drawn) {
        fputs("\r\033[K", screen->out);
        fflush(screen->out);
        screen->drawn = false;
    }
}

/* 4380 -> "4380", 12700 -> "12.7k", 1270000 -> "1.27M". */
static const char *rate_text(char out[FORMAT_MAX], double rate) {
    if (rate < 9999.5) {
        snprintf(out, FORMAT_MAX, "%.0f", rate);
    } else if (rate < 999950) {
        snprintf(out, FORMAT_MAX, "%.1fk", rate / 1e3);
    } else {
        snprintf(out, FORMAT_MAX, "%.2fM", rate / 1e6);
    }
    return out;
}

static const char *ms_text(char out[FORMAT_MAX], double seconds) {
    double ms = seconds * 1e3;
    snprintf(out, FORMAT_MAX, ms < 9.95 ? "%.1f" : "%.0f", ms);
    return out;
}

/* What a rate is of: images or tokens; and how many a sample has. */
static const char *rate_unit(uint32_t context) {
    return context ? "tok/s" : "img/s";
}

static double rate_of(double samples_per_s, uint32_t context) {
    return context ? samples_per_s * context : samples_per_s;
}

static void model_print(FILE *out, const struct train_settings *settings,
                        const struct rf_train_start *start, const char *wire) {
    const struct rf_train_options *o = &settings->train;
    char a[FORMAT_MAX], b[FORMAT_MAX], c[FORMAT_MAX];

    format_count(a, start->parameters);
    format_count(b, start->train_samples);
    format_count(c, start->steps);
    if (!start->context) {
        fprintf(out, "%s, %s parameters; batch %u = %u x %u; %s samples, %s steps%s\n", o->model, a,
                start->batch, start->shards, start->batch / start->shards, b, c, wire);
        return;
    }
    fprintf(out, "%s, %s parameters; batch %u = %u x %u windows of %u tokens%s\n", o->model, a,
            start->batch, start->shards, start->batch / start->shards, start->context, wire);
    fprintf(out, "%s windows, vocabulary %u; %s steps, %llu an epoch\n", b, start->vocabulary, c,
            (unsigned long long)start->steps_per_epoch);
}

static void memory_print(FILE *out, const struct rf_train_memory *memory) {
    char a[FORMAT_MAX], b[FORMAT_MAX], c[FORMAT_MAX];
    size_t passing = memory->gradients + memory->averaged;

    fprintf(out, "memory a worker: parameters and optimizer %s, gradients %s,\n",
            format_bytes(a, memory->parameters + memory->optimizer), format_bytes(b, passing));
    fprintf(out, "  activations %s\n", format_bytes(c, memory->activations));
}

void screen_start(struct train_screen *screen, const struct train_settings *settings,
                  const struct rf_train_start *start, const char *transport, const char *folder) {
    char host[64] = "", wire[40] = "";

    if (screen->quiet) {
        return;
    }
    gethostname(host, sizeof host - 1);
    if (start->size == 1) {
        fprintf(screen->out, "1 worker on %s, %s\n", host, start->compute);
    } else {
        fprintf(screen->out, "%d workers, rank 0 on %s, by %s, %s\n", start->size, host, transport,
                start->compute);
    }
    if (settings->train.ddp.wire != RF_WIRE_NONE && start->size > 1) {
        snprintf(wire, sizeof wire, "; gradients travel as %s", settings->compress);
    }
    model_print(screen->out, settings, start, wire);
    memory_print(screen->out, &start->memory);
    fprintf(screen->out, "output in %s; Ctrl-C stops after the step\n", folder);
    fflush(screen->out);
}

void screen_begin(struct train_screen *screen) {
    screen->began = now_s();
}

void screen_count(struct train_screen *screen, const struct rf_train_step *step) {
    if (!screen->counts) {
        screen->counts = true;
        screen->first = step->step - 1;
    }
}

/* What is left, from this worker's rate since its start. */
static const char *left_text(char out[FORMAT_MAX], const struct train_screen *screen, uint64_t step,
                             uint64_t steps) {
    double rate = (now_s() - screen->began) / (double)(step - screen->first);
    return format_duration(out, rate * (double)(steps - step));
}

static void live_draw(struct train_screen *screen, const struct rf_train_step *step, double now) {
    char bar[BAR + 1], rate[FORMAT_MAX], left[FORMAT_MAX], line[160];
    int filled = (int)(step->step * BAR / step->steps);

    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = 0;
    snprintf(line, sizeof line, "[%s] %llu/%llu  loss %.4f  %s %s  left %s", bar,
             (unsigned long long)step->step, (unsigned long long)step->steps, step->loss,
             rate_text(rate, rate_of(step->samples_per_s, step->context)), rate_unit(step->context),
             left_text(left, screen, step->step, step->steps));
    fprintf(screen->out, "\r\033[K%.*s", COLUMNS, line);
    fflush(screen->out);
    screen->drawn = true;
    screen->redrawn = now;
}

/* The table's line: means since the last one. */
static void line_print(struct train_screen *screen, const struct rf_train_step *step, int workers) {
    char at[48], ms[FORMAT_MAX], data[FORMAT_MAX], ring[FORMAT_MAX], rate[FORMAT_MAX];
    char left[FORMAT_MAX], up[FORMAT_MAX];
    double n = (double)screen->steps;

    screen_clear(screen);
    if (!screen->header) {
        screen->header = true;
        fprintf(screen->out, "%-13s %8s %7s %8s %5s %5s %5s %6s %5s %6s\n", " step", "loss", "|g|",
                "lr", "ms", "data", "ring", rate_unit(step->context), "up", "left");
    }
    snprintf(at, sizeof at, " %llu/%llu", (unsigned long long)step->step,
             (unsigned long long)step->steps);
    snprintf(up, sizeof up, "%d/%d", workers, screen->size);
    double samples_per_s = screen->step_s > 0 ? (double)screen->samples / screen->step_s : 0;
    fprintf(screen->out, "%-13s %8.4f %7.3g %8.2e %5s %5s %5s %6s %5s %6s\n", at,
            screen->samples ? screen->loss_sum / (double)screen->samples : step->loss,
            step->grad_norm, step->lr, ms_text(ms, screen->step_s / n),
            ms_text(data, screen->data_s / n), ms_text(ring, screen->exposed_s / n),
            rate_text(rate, rate_of(samples_per_s, step->context)), up,
            left_text(left, screen, step->step, step->steps));
    fflush(screen->out);
    screen->steps = screen->samples = 0;
    screen->loss_sum = screen->step_s = screen->data_s = screen->exposed_s = 0;
}

void screen_step(struct train_screen *screen, const struct rf_train_step *step, int workers) {
    double now = now_s();

    if (!screen->steps && !screen->header && step->step > 1) { /* we take over */
        screen->header = true;
        screen->printed = now;
    }
    screen->steps++;
    screen->samples += step->samples;
    screen->loss_sum += step->loss * (double)step->samples;
    screen->step_s += step->step_s;
    screen->data_s += step->data_s;
    screen->exposed_s += step->exposed_s;
    if (screen->quiet) {
        return;
    }
    if (step->step == 1 || (screen->steps >= LINE_STEPS && now - screen->printed >= LINE_SECONDS)) {
        line_print(screen, step, workers);
        screen->printed = now;
    }
    if (screen->live && now - screen->redrawn >= REDRAW_SECONDS) {
        live_draw(screen, step, now);
    }
}

void screen_best(struct train_screen *screen, const struct rf_train_epoch *epoch) {
    bool of_tokens = epoch->context != 0;
    double value = of_tokens ? epoch->test_loss : epoch->accuracy;

    if (isnan(screen->best) || (of_tokens ? value < screen->best : value > screen->best)) {
        screen->best = value;
        screen->best_at = of_tokens ? epoch->step : epoch->epoch;
    }
}

void screen_epoch(struct train_screen *screen, const struct rf_train_epoch *epoch) {
    char count[FORMAT_MAX], duration[FORMAT_MAX];

    if (screen->quiet) {
        return;
    }
    screen_clear(screen);
    if (epoch->context) {
        fprintf(screen->out, "step %llu: val loss %.4f, %.2f %% of tokens, over %s windows, %s\n",
                (unsigned long long)epoch->step, epoch->test_loss, epoch->accuracy * 100,
                format_count(count, epoch->test_samples),
                format_duration(duration, epoch->seconds));
        fflush(screen->out);
        return;
    }
    fprintf(screen->out, "epoch %llu: accuracy %.2f %% of %s, test loss %.4f, step %llu, %s\n",
            (unsigned long long)epoch->epoch, epoch->accuracy * 100,
            format_count(count, epoch->test_samples), epoch->test_loss,
            (unsigned long long)epoch->step, format_duration(duration, epoch->seconds));
    fflush(screen->out);
}

void screen_stopping(struct train_screen *screen) {
    if (!screen->quiet) {
        screen_clear(screen);
        fputs("stopping after this step; once more to stop at once\n", screen->out);
        fflush(screen->out);
    }
}

static const char *time_text(char out[16]) {
    time_t now = time(NULL);
    struct tm local;

    localtime_r(&now, &local);
    strftime(out, 16, "%H:%M:%S", &local);
    return out;
}

void screen_checkpoint(struct train_screen *screen, const struct train_settings *settings,
                       const struct rf_checkpoint_news *news) {
    char at[16], bytes[FORMAT_MAX], took[FORMAT_MAX];
    unsigned long long step = (unsigned long long)news->step;
    const char *uri = settings->train.checkpoint.uri;

    format_bytes(bytes, news->bytes);
    format_duration(took, news->seconds);
    time_text(at);
    screen_clear(screen);
    switch (news->kind) {
    case RF_CHECKPOINT_SAVED:
        screen->failed_checkpoints = 0;
        if (!screen->quiet) {
            fprintf(screen->out, "%s = checkpoint %llu %s/%s, %s in %s, in the background\n", at,
                    step, uri, news->name, bytes, took);
        }
        break;
    case RF_CHECKPOINT_RETURNED: /* step 0 is the beginning, once more */
        if (!screen->quiet && (step || news->rolled_back)) {
            fprintf(screen->out, "%s = %s step %llu: %s/%s, %s read in %s\n", at,
                    news->rolled_back ? "rolled back to" : "resumed from", step, uri, news->name,
                    bytes, took);
        }
        break;
    case RF_CHECKPOINT_FAILED:
        if (!screen->failed_checkpoints++) {
            fprintf(stderr, "%s ! checkpoint %llu is not written, training goes on: %s\n", at, step,
                    news->text);
        }
        break;
    case RF_CHECKPOINT_BAD:
        fprintf(stderr, "%s ! checkpoint %s: %s\n", at, news->name, news->text);
        break;
    case RF_CHECKPOINT_PARTED:
    case RF_CHECKPOINT_NONE:
        break;
    }
    fflush(screen->out);
}

/* The digest of each of the first workers, two or three a line, and what follows from all of them.
 */
static void digest_print(FILE *out, const struct rf_train_result *result, int size) {
    enum { LISTED = 8 };
    int known = size < RF_MAX_LOCAL_RANKS ? size : RF_MAX_LOCAL_RANKS;
    int listed = known < LISTED ? known : LISTED, others = 0;
    int columns = listed == 4 ? 2 : 3;

    if (size == 1) {
        fprintf(out, "  digest   0x%016llx\n", (unsigned long long)result->digest);
        return;
    }
    for (int i = 0; i < known; i++) {
        others += result->digests[i] != result->digest;
    }
    for (int i = 0; i < listed; i++) {
        const char *before = i == 0 ? "  digest   " : i % columns ? "  " : "\n           ";
        fprintf(out, "%s%d: 0x%016llx", before, i, (unsigned long long)result->digests[i]);
    }
    if (others) {
        fprintf(out, "\n           DIFFERENT on %d of %d workers: their models are not the same\n",
                others, size);
    } else {
        fprintf(out, "\n           equal on all %d workers\n", size);
    }
}

/* Where the wall time went, in parts that add up to it. */
static void times_print(FILE *out, const struct rf_train_result *r, int size) {
    char a[FORMAT_MAX], b[FORMAT_MAX], c[FORMAT_MAX], d[FORMAT_MAX];
    double rest = r->seconds - r->compute_s - r->data_s - r->exposed_s - r->wait_s - r->eval_s;

    fprintf(out, "  time     compute %s, data %s, evaluation %s, the rest %s\n",
            format_duration(a, r->compute_s), format_duration(b, r->data_s),
            format_duration(c, r->eval_s), format_duration(d, rest > 0 ? rest : 0));
    if (size > 1) {
        fprintf(out, "           waiting for averages and reports %s, for slower workers %s\n",
                format_duration(a, r->exposed_s), format_duration(b, r->wait_s));
        fprintf(out, "  ring     averaging took %s: %s (%.0f %%) hidden by computation, %s not\n",
                format_duration(a, r->comm_s), format_duration(b, r->comm_s * r->hidden_ratio),
                r->hidden_ratio * 100, format_duration(c, r->comm_s * (1 - r->hidden_ratio)));
    }
}

/* Nothing where nothing happened. */
static void history_print(FILE *out, const struct train_history *h) {
    if (h->failures || h->joined || h->retried) {
        fprintf(out, "  failures survived %llu, workers joined %llu, steps redone %llu\n",
                (unsigned long long)h->failures, (unsigned long long)h->joined,
                (unsigned long long)h->retried);
    }
}

static void skipped_print(FILE *out, const struct rf_train_result *result, const char *folder) {
    char count[FORMAT_MAX];

    if (result->skipped) {
        fprintf(out, "  skipped  %s samples whose data is damaged, told in\n",
                format_count(count, result->skipped));
        fprintf(out, "           %s/%s\n", folder, TRAIN_BAD_FILE);
    }
}

static void next_print(FILE *out, const struct train_settings *settings,
                       const struct rf_train_result *result, int size) {
    const struct rf_train_options *o = &settings->train;

    if (result->stopped) {
        fprintf(out, settings->train.checkpoint.uri
                         ? "  next     the same command with --resume auto goes on from here\n"
                         : "  next     the same command starts again from the beginning\n");
    } else if (size == 1) {
        fprintf(out, "  next     ringfold run -n 4 -- ringfold train %s --data %s\n", o->model,
                o->data);
    } else {
        fprintf(out, "  next     ringfold run -n %d -- ringfold train %s --data %s --epochs %u\n",
                size, o->model, o->data, o->epochs ? 2 * o->epochs : 3);
    }
}

void screen_receipt(struct train_screen *screen, const struct train_settings *settings,
                    const struct rf_train_result *result, const struct train_history *history,
                    int workers, const char *folder, const char *weights) {
    char a[FORMAT_MAX], b[FORMAT_MAX], c[FORMAT_MAX], d[FORMAT_MAX], e[FORMAT_MAX];
    FILE *out = screen->out;

    screen_clear(screen);
    if (screen->quiet) {
        return;
    }
    fprintf(out, "%s: %s steps, %s %s in %s, %s %s/s\n", result->stopped ? "stopped" : "done",
            format_count(a, result->steps), format_count(b, result->samples),
            result->context ? "windows" : "samples", format_duration(c, result->seconds),
            rate_text(d, rate_of(result->samples_per_s, result->context)),
            result->context ? "tokens" : "samples");
    times_print(out, result, workers);
    history_print(out, history);
    skipped_print(out, result, folder);
    if (!isnan(screen->best) && result->context) {
        fprintf(out, "  best     val loss %.4f after step %llu; last %.4f, loss %.4f\n",
                screen->best, (unsigned long long)screen->best_at, result->test_loss, result->loss);
    } else if (!isnan(screen->best)) {
        fprintf(out, "  best     accuracy %.2f %% after epoch %llu; last %.2f %%, loss %.4f\n",
                screen->best * 100, (unsigned long long)screen->best_at, result->accuracy * 100,
                result->loss);
    }
    fprintf(out, "  memory   a worker: parameters %s, gradients %s,\n",
            format_bytes(a, result->memory.parameters), format_bytes(b, result->memory.gradients));
    fprintf(out, "           averaged %s, optimizer %s, activations %s,\n",
            format_bytes(c, result->memory.averaged), format_bytes(d, result->memory.optimizer),
            format_bytes(e, result->memory.activations));
    fprintf(out, "           this process at most %s\n", format_bytes(a, train_peak_bytes()));
    digest_print(out, result, workers);
    fprintf(out, "  weights  %s\n", weights);
    fprintf(out, "  log      %s%s%s/metrics.jsonl\n", settings->log ? settings->log : "",
            settings->log ? ", " : "", folder);
    next_print(out, settings, result, screen->size);
    fflush(out);
}
