/* The picture of a plan: one small picture a step, ranks on a circle, rank 0 at the top and on
 * clockwise. Arrows are the step's messages; the wedges around a rank are what it holds after the
 * step.
 *
 * What ranks hold is followed through the plan's messages alone: a set of contributions for each
 * slice, joined where the receiver folds and replaced where it stores. The text stands on a card of
 * its own, so that it can be read on any page. */
#include "coll/plan.h"

#include "base/mem.h"
#include "base/status.h"
#include "coll/schedule.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RANKS = RF_PLAN_MAX_PICTURE_RANKS, MARGIN = 28, HEADER = 82, CAPTION = 64, FOOTER = 46 };

#define PI    3.14159265358979323846
#define CARD  "#fcfcfd"
#define INK   "#24292f"
#define FAINT "#6a737d"

/* What a wedge stands for. */
enum look { PLAIN, SLICES, CONTRIBUTIONS };

struct text {
    char *bytes;
    size_t length, capacity;
    int error;
};

struct picture {
    const struct rf_plan *plan;
    struct text text;
    int size, slices, steps, columns, rows;
    enum look look;
    double radius, outer, inner; /* of the circle, of a rank, of its middle */
    double panel_w, panel_h, width, height, left;
    uint32_t held[MAX_RANKS][MAX_RANKS]; /* of each rank and slice: whose contributions */
};

RF__PRINTF(2, 3)
static void put(struct picture *p, const char *format, ...) {
    struct text *t = &p->text;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || t->error) {
        t->error = t->error ? t->error : RF_EINTERNAL;
        return;
    }
    if (t->length + (size_t)length + 1 > t->capacity) {
        size_t capacity = (t->length + (size_t)length + 1) * 2;
        char *grown = rf__grow(t->bytes, capacity, 1);
        if (!grown) {
            t->error = RF_ENOMEM;
            return;
        }
        t->bytes = grown;
        t->capacity = capacity;
    }
    va_start(arguments, format);
    vsnprintf(t->bytes + t->length, t->capacity - t->length, format, arguments);
    va_end(arguments);
    t->length += (size_t)length;
}

/* ---- colours ---- */

struct colour {
    char hex[8];
};

static struct colour colour_of(int index, int of) {
    static const char *const few[] = {"#2f74d0", "#e2703a", "#25a17a", "#a44fc4",
                                      "#d49a0a", "#d3436b", "#2fa3b8", "#6c63e0"};
    struct colour c = {{0}};

    if (of <= (int)(sizeof few / sizeof few[0])) {
        snprintf(c.hex, sizeof c.hex, "%s", few[index]);
    } else {
        double rgb[3], hue = 210 + 360.0 * index / of, light = index % 2 ? 0.44 : 0.56;
        for (int i = 0; i < 3; i++) {
            double k = fmod((i == 0 ? 0 : i == 1 ? 8 : 4) + hue / 30, 12);
            double edge = fmax(-1, fmin(fmin(k - 3, 9 - k), 1));
            rgb[i] = light - 0.62 * fmin(light, 1 - light) * edge;
        }
        snprintf(c.hex, sizeof c.hex, "#%02x%02x%02x", (unsigned)lround(255 * rgb[0]) & 255,
                 (unsigned)lround(255 * rgb[1]) & 255, (unsigned)lround(255 * rgb[2]) & 255);
    }
    return c;
}

/* ---- what ranks hold ---- */

static int population(uint32_t bits) {
    return __builtin_popcount(bits);
}

static void choose_look(struct picture *p) {
    const struct rf_plan_options *o = &p->plan->options;
    int power = 1;

    while (power * 2 <= p->size) {
        power *= 2;
    }
    p->slices = 1;
    p->look = PLAIN;
    switch (o->coll) {
    case RF_COLL_ALLREDUCE:
        p->look = SLICES;
        if (o->algorithm == RF_ALGORITHM_RING || o->algorithm == RF_ALGORITHM_DIRECT) {
            p->slices = p->size;
        } else if (o->algorithm == RF_ALGORITHM_RABENSEIFNER) {
            p->slices = power;
        } else {
            p->look = CONTRIBUTIONS;
        }
        break;
    case RF_COLL_REDUCE_SCATTER:
    case RF_COLL_ALL_GATHER:
        p->look = SLICES;
        p->slices = p->size;
        break;
    case RF_COLL_REDUCE:
    case RF_COLL_BARRIER:
        p->look = CONTRIBUTIONS;
        break;
    case RF_COLL_BROADCAST:
        p->look = SLICES;
        break;
    case RF_COLL_GATHER:
    case RF_COLL_SCATTER:
    case RF_COLL_ALL_TO_ALL:
    case RF_COLL_SEND:
    case RF_COLL_RECV:
    case RF_COLL_COUNT:
        break;
    }
    for (int r = 0; r < p->size; r++) {
        for (int k = 0; k < p->slices; k++) {
            bool has = o->coll == RF_COLL_ALL_GATHER  ? k == r
                       : o->coll == RF_COLL_BROADCAST ? r == o->root
                                                      : true;
            p->held[r][k] = has ? 1u << r : 0;
        }
    }
}

/* Whether the message carries slice k. */
static bool carries(const struct picture *p, const struct rf_plan_message *m, int k) {
    const struct rf_plan_options *o = &p->plan->options;
    bool parts = o->coll == RF_COLL_REDUCE_SCATTER || o->coll == RF_COLL_ALL_GATHER;
    size_t offset = (size_t)k * o->count, length = o->count, each = rf_type_size(o->type);

    if (p->look == CONTRIBUTIONS || p->slices == 1) {
        return true;
    }
    if (!parts) {
        rf__slice(o->count, p->slices, k, &offset, &length);
    }
    return length && m->offset <= offset * each && m->offset + m->bytes >= (offset + length) * each;
}

static bool message_of_step(const struct picture *p, int step, uint64_t *at,
                            struct rf_plan_message *m) {
    while (rf_plan_get_message(p->plan, *at, m)) {
        (*at)++;
        if (m->step == (uint64_t)step) {
            return true;
        }
    }
    return false;
}

/* Carries the step's messages out on `held`. All read what was held before it. */
static void carry_out(struct picture *p, int step) {
    uint32_t before[MAX_RANKS][MAX_RANKS];
    struct rf_plan_message m;
    bool heard = p->plan->options.coll == RF_COLL_BARRIER;

    memcpy(before, p->held, sizeof before);
    for (uint64_t at = 0; message_of_step(p, step, &at, &m);) {
        for (int k = 0; k < p->slices; k++) {
            if (carries(p, &m, k)) {
                uint32_t kept = m.fold || heard ? p->held[m.to][k] : 0;
                p->held[m.to][k] = kept | before[m.from][k];
            }
        }
    }
}

/* The colour of a message is its slice's, or its sender's where whole vectors travel; -1: neither.
 */
static int message_colour(const struct picture *p, const struct rf_plan_message *m, int *of) {
    *of = p->size;
    if (p->look == CONTRIBUTIONS || p->look == PLAIN) {
        return m->from;
    }
    *of = p->slices;
    for (int k = 0; k < p->slices; k++) {
        if (carries(p, m, k)) {
            return k;
        }
    }
    return -1;
}

/* ---- drawing ---- */

struct point {
    double x, y;
};

static double angle_of(const struct picture *p, int rank) {
    return 2 * PI * rank / p->size - PI / 2;
}

static struct point on_circle(double radius, double angle) {
    return (struct point){radius * cos(angle), radius * sin(angle)};
}

static void wedge(struct picture *p, struct point at, double from, double to, double share,
                  const char *colour) {
    double r = p->inner + (p->outer - p->inner) * share;
    struct point a = on_circle(r, from), b = on_circle(r, to);
    struct point c = on_circle(p->inner, to), d = on_circle(p->inner, from);
    int large = to - from > PI;

    if (to - from > 2 * PI - 0.001) {
        put(p, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", at.x, at.y, r, colour);
        return;
    }
    put(p,
        "<path d=\"M%.2f %.2fA%.2f %.2f 0 %d 1 %.2f %.2fL%.2f %.2fA%.2f %.2f 0 %d 0 %.2f %.2fZ\" "
        "fill=\"%s\"/>\n",
        at.x + a.x, at.y + a.y, r, r, large, at.x + b.x, at.y + b.y, at.x + c.x, at.y + c.y,
        p->inner, p->inner, large, at.x + d.x, at.y + d.y, colour);
}

static void draw_rank(struct picture *p, int rank) {
    struct point at = on_circle(p->radius, angle_of(p, rank));
    int wedges = p->look == SLICES ? p->slices : p->look == CONTRIBUTIONS ? p->size : 0;
    bool gather =
        p->plan->options.coll == RF_COLL_ALL_GATHER || p->plan->options.coll == RF_COLL_BROADCAST;
    double gap = wedges > 1 ? fmin(0.05, 0.6 / wedges) : 0;

    put(p, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"#e9ecf0\"/>\n", at.x, at.y, p->outer);
    for (int k = 0; k < wedges; k++) {
        double from = 2 * PI * k / wedges - PI / 2, to = from + 2 * PI / wedges;
        uint32_t held = p->held[rank][p->look == SLICES ? k : 0];
        double share = p->look == CONTRIBUTIONS ? (held >> k & 1)
                       : gather                 ? held != 0
                                                : (double)population(held) / p->size;
        if (share > 0) {
            wedge(p, at, from + gap, to - gap, share, colour_of(k, wedges).hex);
        }
    }
    put(p,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"" CARD "\"/>\n"
        "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.1f\" font-weight=\"600\" fill=\"" INK "\" "
        "text-anchor=\"middle\">%d</text>\n",
        at.x, at.y, p->inner - 0.5, at.x, at.y + p->inner * 0.36, p->inner * 1.02, rank);
}

static void arrow_head(struct picture *p, struct point tip, double direction, double length,
                       const char *colour) {
    struct point a = on_circle(length, direction + PI - 0.45);
    struct point b = on_circle(length, direction + PI + 0.45);
    put(p, "<path d=\"M%.2f %.2fL%.2f %.2fL%.2f %.2fZ\" fill=\"%s\"/>\n", tip.x, tip.y, tip.x + a.x,
        tip.y + a.y, tip.x + b.x, tip.y + b.y, colour);
}

static void badge(struct picture *p, struct point at, int slice, const char *colour) {
    put(p,
        "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"8\" fill=\"%s\" stroke=\"" CARD
        "\" stroke-width=\"2\"/>\n<text x=\"%.2f\" y=\"%.2f\" font-size=\"10.5\" "
        "font-weight=\"700\" fill=\"#fff\" text-anchor=\"middle\">%c</text>\n",
        at.x, at.y, colour, at.x, at.y + 3.6, 'a' + slice);
}

static void draw_message(struct picture *p, const struct rf_plan_message *m, double stroke,
                         bool around, bool with_badge) {
    int of, index = message_colour(p, m, &of);
    struct colour colour = colour_of(index < 0 ? 0 : index, of);
    const char *hex = index < 0 ? "#9aa3ad" : colour.hex;
    double a = angle_of(p, m->from), b = angle_of(p, m->to), head = 5 + 2.2 * stroke;
    struct point from, to, middle;

    if (around) {
        /* Along the circle. */
        double trim = (p->outer + 5) / p->radius, back = head * 0.8 / p->radius;
        b = a + 2 * PI / p->size;
        from = on_circle(p->radius, a + trim);
        to = on_circle(p->radius, b - trim);
        middle = on_circle(p->radius, (a + b) / 2);
        struct point end = on_circle(p->radius, b - trim - back);
        put(p,
            "<path d=\"M%.2f %.2fA%.2f %.2f 0 0 1 %.2f %.2f\" fill=\"none\" stroke=\"%s\" "
            "stroke-width=\"%.1f\" stroke-linecap=\"round\"/>\n",
            from.x, from.y, p->radius, p->radius, end.x, end.y, hex, stroke);
        arrow_head(p, to, b - trim - back / 2 + PI / 2, head, hex);
    } else {
        /* Bent to the right, so that there and back keep apart. */
        struct point s = on_circle(p->radius, a), d = on_circle(p->radius, b);
        double dx = d.x - s.x, dy = d.y - s.y, length = hypot(dx, dy), bend = length * 0.11;
        struct point c = {(s.x + d.x) / 2 - dy / length * bend,
                          (s.y + d.y) / 2 + dx / length * bend};
        double out = atan2(c.y - s.y, c.x - s.x), in = atan2(d.y - c.y, d.x - c.x);
        struct point trim_out = on_circle(p->outer + 4, out), trim_in = on_circle(p->outer + 4, in);
        struct point back = on_circle(head * 0.8, in);
        from = (struct point){s.x + trim_out.x, s.y + trim_out.y};
        to = (struct point){d.x - trim_in.x, d.y - trim_in.y};
        middle = (struct point){(from.x + 2 * c.x + to.x) / 4, (from.y + 2 * c.y + to.y) / 4};
        put(p,
            "<path d=\"M%.2f %.2fQ%.2f %.2f %.2f %.2f\" fill=\"none\" stroke=\"%s\" "
            "stroke-width=\"%.1f\" stroke-linecap=\"round\"/>\n",
            from.x, from.y, c.x, c.y, to.x - back.x, to.y - back.y, hex, stroke);
        arrow_head(p, to, in, head, hex);
    }
    if (with_badge && index >= 0) {
        badge(p, middle, index, hex);
    }
}

static void put_bytes(struct picture *p, uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    put(p, "%.*f %s", value < 10 && value != floor(value) ? 1 : 0, value, units[unit]);
}

/* Algorithms of two equal halves. */
static bool has_halves(const struct picture *p) {
    const struct rf_plan_options *o = &p->plan->options;
    return o->coll == RF_COLL_ALLREDUCE && p->steps % 2 == 0 &&
           (p->slices == 1 || p->slices == p->size) &&
           (o->algorithm == RF_ALGORITHM_RING || o->algorithm == RF_ALGORITHM_RABENSEIFNER ||
            o->algorithm == RF_ALGORITHM_TREE);
}

static const char *phase_of(const struct picture *p, int step) {
    bool first = step < p->steps / 2;

    if (!has_halves(p)) {
        return "";
    }
    if (p->plan->options.algorithm == RF_ALGORITHM_TREE) {
        return first ? "\u00b7 reduce" : "\u00b7 broadcast";
    }
    return first ? "\u00b7 reduce-scatter" : "\u00b7 all-gather";
}

/* "4 messages of 16 MiB, added up" */
static void draw_caption(struct picture *p, int step) {
    struct rf_plan_message m, first = {0};
    uint64_t count = 0, folds = 0, most = 0;
    bool equal = true;

    for (uint64_t at = 0; message_of_step(p, step, &at, &m);) {
        first = count ? first : m;
        equal = equal && m.bytes == first.bytes;
        most = m.bytes > most ? m.bytes : most;
        folds += m.fold;
        count++;
    }
    double y = p->radius + p->outer - CAPTION / 2.0 + 28;
    put(p,
        "<text x=\"0\" y=\"%.1f\" font-size=\"13\" font-weight=\"600\" fill=\"" INK
        "\" text-anchor=\"middle\">step %d<tspan dx=\"4\" font-weight=\"400\">%s</tspan></text>\n",
        y, step + 1, phase_of(p, step));
    put(p, "<text x=\"0\" y=\"%.1f\" font-size=\"11.5\" fill=\"" FAINT "\" text-anchor=\"middle\">",
        y + 17);
    put(p, "%llu message%s", (unsigned long long)count, count == 1 ? "" : "s");
    if (most) {
        put(p, equal ? " of " : ", up to ");
        put_bytes(p, most);
        put(p, ", %s", folds == count ? "added up" : folds ? "added up or kept" : "kept");
    }
    put(p, "</text>\n");
}

static void draw_step(struct picture *p, int step) {
    double x = p->left + (step % p->columns + 0.5) * p->panel_w;
    double y = HEADER + (step / p->columns + 0.5) * p->panel_h;
    struct rf_plan_message m;
    uint64_t count = 0;
    bool around = p->size > 2; /* only to the next rank, like a ring */

    for (uint64_t at = 0; message_of_step(p, step, &at, &m);) {
        around = around && (m.from + 1) % p->size == m.to;
        count++;
    }
    double stroke = count <= (uint64_t)(2 * p->size) ? 2.6 : count <= 60 ? 1.6 : 0.9;
    bool badges = around && p->look == SLICES && p->slices > 1 && p->slices <= 8;

    put(p, "<g transform=\"translate(%.1f %.1f)\">\n", x, y);
    draw_caption(p, step);
    put(p, "<g transform=\"translate(0 %.1f)\">\n", -CAPTION / 2.0);
    put(p, "<circle r=\"%.1f\" fill=\"none\" stroke=\"#e9ecf0\" stroke-width=\"1.5\"/>\n",
        p->radius);
    carry_out(p, step);
    for (int r = 0; r < p->size; r++) {
        draw_rank(p, r);
    }
    for (uint64_t at = 0; message_of_step(p, step, &at, &m);) {
        draw_message(p, &m, stroke, around, badges);
    }
    put(p, "</g>\n</g>\n");
}

/* ---- the page ---- */

static void lay_out(struct picture *p) {
    int n = p->size, steps = p->steps > 0 ? p->steps : 1;

    p->outer = n <= 8 ? 25 : n <= 14 ? 19 : 15;
    p->inner = p->outer * 0.5;
    p->radius = fmax(n == 1   ? 1
                     : n == 2 ? 62
                              : 76,
                     n *
                         (p->outer * 2 + (n <= 8    ? 42
                                          : n <= 14 ? 26
                                                    : 18)) /
                         (2 * PI));
    p->panel_w = 2 * (p->radius + p->outer) + 40;
    p->panel_h = 2 * (p->radius + p->outer) + 28 + CAPTION;
    p->columns = steps <= 3 ? steps : steps <= 8 ? (steps + 1) / 2 : steps <= 24 ? 5 : 8;
    if (p->steps && has_halves(p) && steps / 2 <= 7) {
        p->columns = steps / 2; /* reduce-scatter above, all-gather below */
    }
    p->rows = (steps + p->columns - 1) / p->columns;
    /* The title's width is unknown here: eleven a character is plenty, and 690 for the note below.
     */
    size_t title = strlen(rf_coll_name(p->plan->options.coll)) +
                   strlen(rf_algorithm_name(p->plan->options.algorithm)) +
                   strlen(" by  on 24 ranks, 1024 MiB each");
    p->width = fmax(p->columns * p->panel_w, fmax(11.0 * (double)title, 690)) + 2 * MARGIN;
    p->left = (p->width - p->columns * p->panel_w) / 2;
    p->height = HEADER + p->rows * p->panel_h + FOOTER;
}

static void put_share(struct picture *p) {
    const struct rf_plan_totals *t = &p->plan->totals;

    put(p, "%llu message%s in %d step%s", (unsigned long long)t->messages,
        t->messages == 1 ? "" : "s", p->steps, p->steps == 1 ? "" : "s");
    if (t->max_messages) {
        bool equal = t->messages == t->max_messages * (uint64_t)p->size;
        put(p, equal ? "; every rank sends %llu" : "; the busiest rank sends %llu",
            (unsigned long long)t->max_messages);
        if (t->max_bytes_sent) {
            put(p, ", together ");
            put_bytes(p, t->max_bytes_sent);
        }
    }
}

static void draw_header(struct picture *p) {
    const struct rf_plan_options *o = &p->plan->options;

    put(p,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu "
        "Sans', "
        "Helvetica, Arial, sans-serif\">\n",
        p->width, p->height, p->width, p->height);
    put(p, "<title>%s by %s on %d rank%s</title>\n", rf_coll_name(o->coll),
        rf_algorithm_name(o->algorithm), p->size, p->size == 1 ? "" : "s");
    put(p,
        "<rect x=\"0.5\" y=\"0.5\" width=\"%.0f\" height=\"%.0f\" rx=\"14\" fill=\"" CARD
        "\" stroke=\"#d5dae0\"/>\n",
        p->width - 1, p->height - 1);
    put(p,
        "<text x=\"%d\" y=\"38\" font-size=\"19\" font-weight=\"700\" fill=\"" INK
        "\">%s <tspan font-weight=\"400\" fill=\"" FAINT "\">by</tspan> %s "
        "<tspan font-weight=\"400\" fill=\"" FAINT "\">on %d rank%s, ",
        MARGIN, rf_coll_name(o->coll), rf_algorithm_name(o->algorithm), p->size,
        p->size == 1 ? "" : "s");
    put_bytes(p, o->count * rf_type_size(o->type));
    put(p, " each</tspan></text>\n");
    put(p, "<text x=\"%d\" y=\"60\" font-size=\"13\" fill=\"" FAINT "\">", MARGIN);
    put_share(p);
    put(p, "</text>\n");
}

static void draw_footer(struct picture *p) {
    bool gather =
        p->plan->options.coll == RF_COLL_ALL_GATHER || p->plan->options.coll == RF_COLL_BROADCAST;
    const char *note = "Arrows have the colour of their sender.";

    if (p->plan->options.coll == RF_COLL_BARRIER) {
        note = "A wedge is a rank that this one has heard of.";
    } else if (p->look == CONTRIBUTIONS) {
        note = "A wedge is one rank's contribution to what is held; arrows have their sender's "
               "colour.";
    } else if (p->look == SLICES && gather) {
        note = "A wedge is a part that the rank has after the step.";
    } else if (p->look == SLICES) {
        note = "A wedge is a slice of the data after the step: it grows with each rank's "
               "contribution and is full when all are in.";
    }
    put(p, "<text x=\"%d\" y=\"%.1f\" font-size=\"12\" fill=\"" FAINT "\">%s</text>\n</svg>\n",
        MARGIN, p->height - 22, note);
}

int rf_plan_svg(const struct rf_plan *plan, char **out, size_t *bytes, struct rf_error *err) {
    struct picture *p = NULL;
    int rc = 0;

    *out = NULL;
    *bytes = 0;
    if (plan->options.size > RF_PLAN_MAX_PICTURE_RANKS) {
        return rf__fail(err, RF_ELIMIT, 0, "%d ranks are more than a picture's maximum of %d",
                        plan->options.size, (int)RF_PLAN_MAX_PICTURE_RANKS);
    }
    if (plan->steps > RF_PLAN_MAX_PICTURE_STEPS) {
        return rf__fail(err, RF_ELIMIT, 0, "%llu steps are more than a picture's maximum of %d",
                        (unsigned long long)plan->steps, (int)RF_PLAN_MAX_PICTURE_STEPS);
    }
    p = rf__alloc(1, sizeof *p);
    if (!p) {
        return rf__fail(err, RF_ENOMEM, 0, "drawing a plan: out of memory");
    }
    p->plan = plan;
    p->size = plan->options.size;
    p->steps = (int)plan->steps;
    choose_look(p);
    lay_out(p);
    draw_header(p);
    for (int step = 0; step < (p->steps ? p->steps : 1); step++) {
        draw_step(p, step);
    }
    draw_footer(p);
    rc = p->text.error;
    if (rc) {
        rf__free(p->text.bytes);
        rf__fail(err, rc, 0, "drawing a plan: %s", rf_error_text(rc));
    } else {
        *out = p->text.bytes;
        *bytes = p->text.length;
    }
    rf__free(p);
    return rc;
}

void rf_plan_svg_free(char *svg) {
    rf__free(svg);
}
