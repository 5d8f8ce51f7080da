/* Frames: what travels on a link. A fixed header of 64 bytes, little-endian, then at most
 * RF__FRAME_PAYLOAD bytes. docs/WIRE.md has the layout. Every frame carries job, generation and
 * sequence number, so that nothing of another generation or another call is ever folded. */
#ifndef RF_GROUP_FRAME_H
#define RF_GROUP_FRAME_H

#include <ringfold/types.h>

enum { RF__FRAME_BYTES = 64, RF__FRAME_PAYLOAD = 1 << 20, RF__CONTROL_PAYLOAD = 1024 };

enum rf__frame_kind {
    RF__FRAME_DATA = 1, /* a piece of a collective's message */
    RF__FRAME_BEAT,     /* still here */
    RF__FRAME_REVOKE,   /* the generation is over: payload is the first cause */
    RF__FRAME_BYE,      /* the sender leaves; nothing follows */
    RF__FRAME_OFFER,    /* send/recv: a message waits at the sender */
    RF__FRAME_TAKE,     /* send/recv: the receiver is ready for it */
    RF__FRAME_MESSAGE,  /* send/recv: a piece of it */
    RF__FRAME_KINDS
};

struct rf__frame {
    enum rf__frame_kind kind;
    enum rf_coll coll;
    enum rf_type type;
    enum rf_redop redop;
    enum rf_algorithm algorithm;
    int32_t root;
    uint32_t bytes;   /* of payload */
    uint32_t message; /* DATA: number of the message in this direction of the pair, modulo 2^32 */
    uint64_t generation;
    uint64_t
        seq; /* of the collective call, or of the message between this pair in this direction */
    uint64_t count;  /* elements, as in the call */
    uint64_t offset; /* of the payload in its message, bytes */
    uint64_t job;    /* tag of job and member list */
};

void rf__frame_encode(const struct rf__frame *frame, unsigned char bytes[RF__FRAME_BYTES]);

/* RF_EPROTO for a wrong magic, an enum out of range or a payload beyond its limit. */
int rf__frame_decode(const unsigned char bytes[RF__FRAME_BYTES], struct rf__frame *out);

/* The payload of REVOKE: code, culprit's rank, text and details, each bounded and printable after
 * decoding. Returns the length. */
size_t rf__cause_encode(const struct rf_error *error, unsigned char bytes[RF__CONTROL_PAYLOAD]);
int rf__cause_decode(const unsigned char *bytes, size_t length, struct rf_error *out);

#endif
