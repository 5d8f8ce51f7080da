/* The model of a network under a plan: discrete events, one heap.
 *
 * A message holds its sender's way out and its receiver's way in for latency + bytes / bandwidth. A
 * rank's messages leave in the order of its schedule; one whose receiver is busy waits in that
 * receiver's line. What a rank has received it may read later; nothing waits for a receive to be
 * posted. Reading and folding take place in the order of the schedule. */
#include "coll/plan.h"

#include "base/mem.h"

enum { NOBODY = -1 };

struct event {
    double time;
    uint64_t order; /* of creation, for events at the same time */
    bool message;   /* `index` has arrived; otherwise rank `index` begins its next step */
    uint32_t index;
};

struct rank_model {
    size_t at, end;   /* the step: the next op to look at, and where it ends */
    size_t next_send; /* the op that leaves next, before `end` if there is one */
    double time;      /* the rank's own, at `at` */
    double sent_time; /* when the last of the step's messages has left */
    size_t sends_left;
    bool waiting; /* for the message of op `at` */
    bool out_busy, in_busy;
    int line_first, line_last, line_next; /* who waits for our way in; our place in such a line */
    bool in_line;
};

struct model {
    struct rf_plan *plan;
    const struct rf__op *ops;
    const size_t *first;
    struct rank_model *ranks;
    bool *arrived;
    struct event *heap;
    size_t heap_count;
    uint64_t events;
};

static bool before(const struct event *a, const struct event *b) {
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void push(struct model *m, double time, bool message, uint32_t index) {
    struct event event = {.time = time, .order = m->events++, .message = message, .index = index};
    size_t i = m->heap_count++;

    while (i && before(&event, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = event;
}

static struct event pop(struct model *m) {
    struct event top = m->heap[0], last = m->heap[--m->heap_count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < m->heap_count) {
        child += child + 1 < m->heap_count && before(&m->heap[child + 1], &m->heap[child]);
        if (!before(&m->heap[child], &last)) {
            break;
        }
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* Lets the rank's next message leave, if both ways are free; or has it wait in line. */
static void try_send(struct model *m, int rank, double now) {
    struct rank_model *s = &m->ranks[rank];

    while (s->next_send < s->end && m->ops[s->next_send].kind != RF__OP_SEND) {
        s->next_send++;
    }
    if (s->out_busy || s->in_line || s->next_send >= s->end) {
        return;
    }
    uint32_t index = m->ops[s->next_send].message;
    struct rf_plan_message *message = &m->plan->list[index];
    struct rank_model *d = &m->ranks[message->to];
    if (d->in_busy) {
        if (d->line_first == NOBODY) {
            d->line_first = rank;
        } else {
            m->ranks[d->line_last].line_next = rank;
        }
        d->line_last = rank;
        s->line_next = NOBODY;
        s->in_line = true;
        return;
    }
    s->next_send++;
    s->out_busy = d->in_busy = true;
    message->start_s = now;
    message->end_s =
        now + m->plan->options.latency_s + (double)message->bytes / m->plan->options.bytes_per_s;
    push(m, message->end_s, true, index);
}

/* Goes through the rank's step as far as what has arrived lets it; at its end makes an event of the
 * next. */
static void go_on(struct model *m, int rank) {
    struct rank_model *s = &m->ranks[rank];
    double rate = m->plan->options.fold_bytes_per_s;

    s->waiting = false;
    for (; s->at < s->end; s->at++) {
        const struct rf__op *op = &m->ops[s->at];
        if (op->kind == RF__OP_RECV) {
            if (!m->arrived[op->message]) {
                s->waiting = true;
                return;
            }
            double end = m->plan->list[op->message].end_s;
            s->time = s->time < end ? end : s->time;
        }
        s->time += rate > 0 ? (double)op->work / rate : 0;
    }
    if (s->sends_left == 0) {
        s->time = s->time < s->sent_time ? s->sent_time : s->time;
        push(m, s->time, false, (uint32_t)rank);
    }
}

static void begin_step(struct model *m, int rank, double now) {
    struct rank_model *s = &m->ranks[rank];
    double *finish = &m->plan->totals.time_s;

    if (s->end == m->first[rank + 1]) {
        *finish = *finish < now ? now : *finish;
        return;
    }
    s->at = s->next_send = s->end;
    while (s->end < m->first[rank + 1] && m->ops[s->end].step == m->ops[s->at].step) {
        s->sends_left += m->ops[s->end].kind == RF__OP_SEND;
        s->end++;
    }
    try_send(m, rank, now);
    go_on(m, rank);
}

static void arrive(struct model *m, uint32_t index, double now) {
    const struct rf_plan_message *message = &m->plan->list[index];
    struct rank_model *s = &m->ranks[message->from], *d = &m->ranks[message->to];
    int first = d->line_first;

    m->arrived[index] = true;
    s->out_busy = d->in_busy = false;
    s->sent_time = now;
    s->sends_left--;
    if (first != NOBODY) {
        d->line_first = m->ranks[first].line_next;
        m->ranks[first].in_line = false;
        try_send(m, first, now);
    }
    try_send(m, message->from, now);
    if (d->waiting && m->ops[d->at].message == index) {
        go_on(m, message->to);
    }
    if (s->sends_left == 0 && !s->waiting) {
        go_on(m, message->from);
    }
}

int rf__plan_model(struct rf_plan *plan, const struct rf__op *ops, const size_t *first) {
    size_t size = (size_t)plan->options.size;
    struct model m = {.plan = plan, .ops = ops, .first = first};
    int rc;

    m.ranks = rf__alloc(size, sizeof *m.ranks);
    m.arrived = rf__alloc(plan->totals.messages, sizeof *m.arrived);
    m.heap =
        rf__alloc(2 * size + 1, sizeof *m.heap); /* a rank has one message and one step at most */
    rc = m.ranks && m.arrived && m.heap ? 0 : RF_ENOMEM;
    if (rc == 0) {
        plan->totals.time_s = 0;
        for (size_t r = 0; r < size; r++) {
            m.ranks[r] = (struct rank_model){.at = first[r],
                                             .end = first[r],
                                             .next_send = first[r],
                                             .line_first = NOBODY,
                                             .line_next = NOBODY};
            push(&m, 0, false, (uint32_t)r);
        }
        while (m.heap_count) {
            struct event event = pop(&m);
            if (event.message) {
                arrive(&m, event.index, event.time);
            } else {
                begin_step(&m, (int)event.index, event.time);
            }
        }
    }
    rf__free(m.heap);
    rf__free(m.arrived);
    rf__free(m.ranks);
    return rc;
}
