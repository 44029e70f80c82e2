/*
 * Two bridges that take turns on one queue elsewhere, as a Promela model. cluster.md beside this file says what is
 * modelled, what is not, how to run it and which rule each part stands for; wake.pml is the protocol of one bridge.
 *
 * What has to hold, holds at rest, when nothing can happen any more: no message is visible while a live listener has a
 * free slot. Sweep and dead-man are off. A time-out may run out whenever it stands. Clocks are counted in ticks, for the
 * rule that forgives by time (C4) is about sums of durations; within a tick nobody knows what came first.
 */

/* -- the size of the world ---------------------------------------------------------------------------------------- */
#ifndef M
#define M 1             /* messages put; each has an id, its number */
#endif
#ifndef TICKS
#define TICKS 0         /* how long the clocks run; with 0 nothing is forgiven by time */
#endif
#ifndef WORDS
#define WORDS 1         /* words `member` of each boot; the first was heard at the beginning */
#endif
#ifndef IDS
#define IDS 32          /* ids remembered of a debt, and told in a `covered` */
#endif
#ifndef AT0
#define AT0 0           /* where the first listener is */
#endif
#ifndef AT1
#define AT1 1           /* where the second is; 9: there is none */
#endif

/* -- how often each fault may happen; each run chooses from 0 up to that, so that rest is reached with any of them -- */
#ifndef F_TRIGGER
#define F_TRIGGER 0     /* a trigger reaches the first bridge alone, or the second alone */
#endif
#ifndef F_LOST
#define F_LOST 0        /* a word between bridges is lost */
#endif
#ifndef F_LATE
#define F_LATE 0        /* `covered` is overtaken by all that is on its way */
#endif
#ifndef F_TWICE
#define F_TWICE 0       /* `covered` comes a second time, behind all that is on its way */
#endif
#ifndef F_BRIDGE
#define F_BRIDGE 0      /* the first bridge, or the second, dies */
#endif
#ifndef F_AGAIN
#define F_AGAIN 0       /* a bridge that died starts again */
#endif
#ifndef F_CRASH
#define F_CRASH 0       /* a listener dies */
#endif
#ifndef F_HANG
#define F_HANG 0        /* a handler never ends */
#endif
#ifndef F_SLOW
#define F_SLOW 0        /* a handler takes long */
#endif
#ifndef F_LEAVE
#define F_LEAVE 0       /* a bridge leaves as planned */
#endif
#ifndef F_SUSPEND
#define F_SUSPEND 0     /* the machine of a bridge sleeps */
#endif

#define NL 2
#define NOBODY NL
#define NOWHERE 9
#define NOID M
#define GENS 10
#define NETQ 4
#define COVERQ 2

/* What bridges say to each other. */
#define MEMBER 1        /* boot, seq, leaving */
#define ABLE 2          /* whether there is a session with room */
#define FULL 3          /* the newest generation that waits for room; 0 none */
#define COVERED 4       /* boot, seq, since, age, ids */
#define TOLD 5          /* a trigger that one bridge alone heard: id, due */

/* What one step of a bridge is about. */
#define GREETS 1
#define COVERS 2
#define LEAVES 3
#define HEARS 4
#define MARKS 5

#define OTHER(b) (1 - (b))
#define ID(b, k) ((b) * M + (k))
#define SENT(b, g) ((b) * GENS + (g))
#define SEQ(b, s) ((b) * (WORDS + 1) + (s))

/* kind, then up to five numbers */
chan net[2] = [NETQ] of { byte, byte, byte, byte, byte, byte };     /* to this bridge */
/* generation, ticks from the wake to the receive */
chan covers[NL] = [COVERQ] of { byte, byte };

byte now;

/* -- the store and the producer ----------------------------------------------------------------------------------- */
byte visible;
bool delayed;           /* put, not yet visible */
byte dead;              /* leases of listeners that died */
byte puts;
bool heading[2 * M];    /* a trigger on its way to this bridge */

/* -- the bridges; stamps are ticks + 1, 0 is none ----------------------------------------------------------------- */
bool up[2];
byte boot[2];
bool leaving[2];
bool departed[2];           /* said `leaving` and ended */
byte slept[2];          /* ticks that this bridge's clock stood still */
bool asleep[2];
byte gen[2];            /* B1 */
bool dirty[2];
bool known[2];          /* the queue was heard of in this boot (B10) */
bool go[2];             /* not deferred, or no longer (C2) */
byte owner[2];
byte named[2 * M];      /* when the unforgiven mark of this id was made (C4) */
byte bare[2];           /* when the newest unforgiven mark was made that has no name */
byte first[2 * M];      /* the generation of the first mark of this id in this boot */
bool before[2 * M];     /* named by a peer before the own trigger came */
byte sent[2 * GENS];    /* when a generation was first sent */
bool due[2];            /* B2: a timer for what is delayed */
byte ended[2];          /* B8: now + V for a session that ended; 2 while a lease from before has not ended */
byte gone[2];           /* C5: now + V for a member that went; likewise */

byte seq[2];            /* own words `member` in this boot */
byte said_at[2 * (WORDS + 1)];
byte heard_boot[2];     /* the peer's newest word, and when it was heard */
byte heard_seq[2];
byte heard_at[2];
bool here[2];           /* the peer is a member */
bool peer_leaves[2];
byte able[2];           /* the peer's word; 2 is none yet */
byte said_able[2];
byte peer_full[2];      /* its level */
byte acted[2];          /* the newest of its levels that was acted upon */
byte said_full[2];

/* -- the listeners ------------------------------------------------------------------------------------------------ */
bool live[NL];
byte at[NL];            /* the bridge of the session, as both know it; the bridge learns of a death later */
bool no_room[NL];          /* said `more` (B6) */
byte slot[NL];          /* a wake on its way */
byte lgen[NL];
byte learned[NL];       /* when that generation was first heard */
bool owed[NL];
byte busy[NL];          /* 1 for ever, 2 for long */

#ifdef COVERAGE
byte cover_at[2];       /* what a bridge takes for the time of the last cover (C5, B9) */
byte cover_true;        /* when the newest receive that covered did begin */
#endif
#ifdef DEADLINE
byte ends[2];           /* when the deferral ends */
byte oldest[2];         /* and when the debt began */
#endif

byte f_trigger, f_lost, f_late, f_twice, f_bridge, f_again, f_crash, f_hang, f_slow, f_leave, f_suspend;

/* Scratch of one atomic step: no part of any state. */
hidden byte x, y, z, what, who, kind, p1, p2, p3, p4, p5, ids, many;
hidden byte alone;

#define CLOCK(b) (now - slept[b])
#define SITS(b, l) (at[l] == (b))
#define HAS_ROOM(b, l) (at[l] == (b) && !no_room[l])
#define ROOM(b) (HAS_ROOM(b, 0) || HAS_ROOM(b, 1))
#define SESSIONS(b) (SITS(b, 0) || SITS(b, 1))
#define NEWEST(a, b) ((a) > (b) -> (a) : (b))
#if M == 1
#define NAMES(b) (named[ID(b, 0)] != 0)
#else
#define NAMES(b) ((named[ID(b, 0)] != 0) + (named[ID(b, 1)] != 0))
#endif

/* C4: sessions that read another store order and forgive nothing. The first bridge's do with STAGING. */
#ifdef STAGING
#define SAME_STORE false
#else
#define SAME_STORE true
#endif

/* C2, C3. Not heard is not able; who leaves is in no order. */
#define IS_ABLE(b) (here[b] && (UNKNOWN_ABLE(b) || able[b] == 1) && (W7_OR(!peer_leaves[b])) && (W14_OR(SAME_STORE)))
#ifdef W8   /* unknown is taken for able */
#define UNKNOWN_ABLE(b) (able[b] == 2)
#else
#define UNKNOWN_ABLE(b) false
#endif
#ifdef W7   /* members that leave stay in the order */
#define W7_OR(x) true
#else
#define W7_OR(x) (x)
#endif
#ifdef W14  /* stores are not compared */
#define W14_OR(x) true
#else
#define W14_OR(x) (x)
#endif
/* The first bridge is the first in order. One that has no room itself is behind all who have. */
#define DEFERS(b) (IS_ABLE(b) && ((b) == 1 || !ROOM(b)))

#ifdef DEADLINE     /* the deferral ends at its time, and no tick comes before what is due */
#define IN_TIME(b) (now + 1 >= ends[b])
#define URGENT(b) (!up[b] || !dirty[b] || go[b] || now + 1 < ends[b])
#else
#define IN_TIME(b) true
#define URGENT(b) true
#endif

/* ================================================ the bridge's rules ============================================= */

/* C4: the moment at which this generation was first told to anybody, by a wake or a welcome. */
inline note_sent(b) {
    if
    :: TICKS > 0 && sent[SENT(b, gen[b])] == 0 -> sent[SENT(b, gen[b])] = CLOCK(b) + 1
    :: else -> skip
    fi
}

/* B3: one slot a session. */
inline write(b, l) { slot[l] = gen[b]; note_sent(b) }

/* B3, B6: who has room; without anybody the debt waits, unowned. C2: a change of order or ability applies at once. */
inline hand_out(b) {
    if :: dirty[b] && !go[b] && !DEFERS(b) -> go[b] = true :: else -> skip fi;
    if
    :: dirty[b] && go[b] && owner[b] == NOBODY && ROOM(b) ->
        owner[b] = (HAS_ROOM(b, 0) -> 0 : 1);
        write(b, owner[b])
    :: else -> skip
    fi
}

inline clean(b) {
    dirty[b] = false; go[b] = false; owner[b] = NOBODY; bare[b] = 0;
    for (z : 0 .. M - 1) { named[ID(b, z)] = 0 }
#ifdef DEADLINE
    ends[b] = 0; oldest[b] = 0
#endif
}

/* B1, C4. `alone`: the others do not know of it (C2). The first mark of an id has its name, no other. */
inline mark(b, k) {
    gen[b]++;
    assert(gen[b] < GENS);      /* or marks go round */
    known[b] = true;
    y = 0;
    if
#ifdef W15  /* a due mark has the name of its immediate twin */
    :: k != NOID && first[ID(b, k)] != 0 -> y = (before[ID(b, k)] -> 2 : 1)
#endif
    :: k != NOID && first[ID(b, k)] == 0 -> first[ID(b, k)] = gen[b]; y = (before[ID(b, k)] -> 2 : 1)
    :: else -> skip
    fi;
    if
    :: y == 2 -> skip           /* born forgiven */
    :: else ->
        if
        :: y == 1 && NAMES(b) < IDS -> named[ID(b, k)] = CLOCK(b) + 1
#ifdef W11  /* what did not fit is nobody's */
        :: y == 1 && NAMES(b) >= IDS -> skip
#endif
        :: else -> bare[b] = CLOCK(b) + 1
        fi;
#ifdef DEADLINE
        if
#ifndef W5  /* a new mark pushes the deferral out */
        :: dirty[b] && ends[b] != 0 -> skip
#endif
        :: else -> ends[b] = now + 1 + DEADLINE
        fi;
        if :: !dirty[b] -> oldest[b] = now + 1 :: else -> skip fi;
#endif
        dirty[b] = true;
        if :: alone -> go[b] = true :: else -> skip fi;
        if :: owner[b] != NOBODY -> write(b, owner[b]) :: else -> skip fi   /* B3 */
    fi
}

/* A lease that was begun before ends before the timer; so does one that nobody can renew any more. */
#define LEASED (dead > 0 || busy[0] != 0 || busy[1] != 0)
inline arm(timer) { timer = (LEASED || timer == 2 -> 2 : 1) }
inline lapse() {
    for (z : 0 .. 1) {
        if :: !LEASED && ended[z] == 2 -> ended[z] = 1 :: else -> skip fi;
        if :: !LEASED && gone[z] == 2 -> gone[z] = 1 :: else -> skip fi
    }
}

/* The session is no more: nothing of it is on its way. */
inline cut(l) {
    at[l] = NOWHERE; slot[l] = 0; no_room[l] = false;
    do :: nempty(covers[l]) -> covers[l]?p1, p2 :: empty(covers[l]) -> break od
}

/* B8. */
inline leave(b, l) {
    cut(l);
    arm(ended[b]);
    if :: owner[b] == l -> owner[b] = NOBODY :: else -> skip fi
}

/* B10: born dirty; C2: a hello dispatches what is deferred. The welcome tells the generation. */
inline greet(b, l) {
    at[l] = b;
    if :: !known[b] -> gen[b]++; known[b] = true; dirty[b] = true; bare[b] = CLOCK(b) + 1 :: else -> skip fi;
    if :: dirty[b] -> go[b] = true :: else -> skip fi;
    lgen[l] = gen[b]; learned[l] = now;
    if :: gen[b] != 0 -> note_sent(b) :: else -> skip fi
}

/* B7; C4: every cover is told, with the newest ids whose own generation is no newer than the cover's. */
inline take_cover(b, l) {
    covers[l]?p1, p2;
    if
    :: sent[SENT(b, p1)] == 0 -> p3 = 1     /* nothing is known of when it began */
    :: else ->
#ifdef W13  /* it began when the cover came */
        p3 = CLOCK(b) + 1
#else
        p3 = sent[SENT(b, p1)] + p2
#endif
    fi;
#ifdef COVERAGE
    cover_at[b] = NEWEST(cover_at[b], p3);
    assert(cover_at[b] <= cover_true);
#endif
    ids = 0; many = 0;
    for (z : 1 .. M) {
        if
        :: first[ID(b, M - z)] != 0 && many < IDS &&
#ifndef W12 /* ids of marks that came after the receive began */
            first[ID(b, M - z)] <= p1 &&
#endif
            true -> ids = ids | (1 << (M - z)); many++
        :: else -> skip
        fi
    };
    if
    :: up[OTHER(b)] && here[b] && (TICKS > 0 || ids != 0) ->
        net[OTHER(b)]!COVERED, heard_boot[b], heard_seq[b], CLOCK(b) + 1 - heard_at[b], CLOCK(b) + 1 - p3, ids
    :: else -> skip
    fi;
    if
    :: p1 >= gen[b] -> clean(b)
    :: p1 < gen[b] && dirty[b] && owner[b] == l && slot[l] == 0 && lgen[l] < gen[b] -> write(b, l)
    :: else -> skip
    fi
}

/* C4 (b): our word of that number, + since - age - 1, is not before the mark. */
#ifdef W1   /* whatever was marked before this word came */
#define PAID(stamp) true
#elif defined(W21)  /* without the tick within which nobody knows the order */
#define PAID(stamp) (y != 0 && (stamp) + p4 <= y + p3)
#else
#define PAID(stamp) (y != 0 && (stamp) + p4 + 1 <= y + p3)
#endif

/* boot p1, seq p2, since p3, age p4, ids p5 */
inline hear_covered(b) {
    y = 0;
    if :: p1 == boot[b] && p2 != 0 -> y = said_at[SEQ(b, p2)] :: else -> skip fi;
#ifdef COVERAGE
#ifdef W6   /* from its arrival */
    cover_at[b] = now + 1;
#else
    if :: y != 0 && y + p3 > p4 + 1 -> cover_at[b] = NEWEST(cover_at[b], y + p3 - p4 - 1) :: else -> skip fi;
#endif
    assert(cover_at[b] <= cover_true);  /* or the sweep comes late (B9) */
#endif
    many = 0;
    for (z : 0 .. M - 1) {
        if
        :: p5 & (1 << z) ->
#ifndef W15
            if :: first[ID(b, z)] == 0 -> before[ID(b, z)] = true :: else -> skip fi;
#else
            before[ID(b, z)] = true;
#endif
#ifdef W3   /* one of its names forgives a debt */
            if :: named[ID(b, z)] != 0 -> many = 1 :: else -> skip fi;
#endif
            named[ID(b, z)] = 0
        :: !(p5 & (1 << z)) && named[ID(b, z)] != 0 && PAID(named[ID(b, z)]) -> named[ID(b, z)] = 0
        :: else -> skip
        fi
    };
    if :: bare[b] != 0 && PAID(bare[b]) -> bare[b] = 0 :: else -> skip fi;
    if
    :: dirty[b] && ((bare[b] == 0 && NAMES(b) == 0) || many == 1) -> clean(b)
    :: else -> skip
    fi
#ifdef W4   /* timers are forgiven too */
    ; due[b] = false; ended[b] = 0; gone[b] = 0
#endif
}

inline forget_peer(b) { able[b] = 2; peer_full[b] = 0; acted[b] = 0; said_able[b] = 0; said_full[b] = 0 }

inline hear(b) {
    if
    :: kind == MEMBER ->
        /* C1: a newcomer is answered. */
        if
        :: p1 != heard_boot[b] || !here[b] ->
            forget_peer(b);
            if
            :: up[OTHER(b)] && seq[b] != 0 && len(net[OTHER(b)]) < NETQ -> net[OTHER(b)]!MEMBER, boot[b], seq[b], leaving[b], 0, 0
            :: else -> skip
            fi
        :: else -> skip
        fi;
        here[b] = true; heard_boot[b] = p1; heard_seq[b] = p2; heard_at[b] = CLOCK(b) + 1; peer_leaves[b] = p3
    :: kind == ABLE -> able[b] = p1
    :: kind == FULL ->
#ifdef W19  /* acted upon when it rises, and not again while it stands */
        if :: acted[b] != 0 -> acted[b] = p1 :: else -> skip fi;
#endif
        peer_full[b] = p1
    :: kind == COVERED -> if :: W14_OR(SAME_STORE) -> hear_covered(b) :: else -> skip fi
    /* Also the due times told with `leaving`: of what is delayed, and of leases (C6). */
    :: kind == TOLD && !p2 -> what = MARKS; who = p1
    :: kind == TOLD && p2 && !p3 -> due[b] = true
    :: kind == TOLD && p2 && p3 -> arm(gone[b])
    fi
}

inline hear_trigger(b, k) {
    heading[ID(b, k)] = false; known[b] = true;
#ifndef W10 /* the sessions' word that the queue is this bridge's own is believed, and its own store is empty */
#ifdef TWIN /* one publish and id: for something now, and for something later */
    due[b] = true;
#endif
    if
#ifdef LATER
    :: k == M - 1 -> due[b] = true
#else
    :: false -> skip
#endif
    :: else -> what = MARKS; who = k
    fi
#ifdef ONE
#ifndef W9  /* told to nobody */
    ; if :: up[OTHER(b)] -> net[OTHER(b)]!TOLD, k, 0, 0, 0, 0 :: else -> skip fi
#endif
#endif
#endif
}

/* C6: debts as triggers, timers as triggers with a time. */
inline hand_over(b) {
    if
    :: up[OTHER(b)] ->
        if :: dirty[b] -> net[OTHER(b)]!TOLD, NOID, 0, 0, 0, 0 :: else -> skip fi;
        if :: due[b] -> net[OTHER(b)]!TOLD, NOID, 1, 0, 0, 0 :: else -> skip fi;
        if :: ended[b] || gone[b] -> net[OTHER(b)]!TOLD, NOID, 1, 1, 0, 0 :: else -> skip fi
    :: else -> skip
    fi
}

/* Everything that a process knows ends with it. */
inline forget(b) {
    up[b] = false; leaving[b] = false; asleep[b] = false; gen[b] = 0; known[b] = false; clean(b);
    for (z : 0 .. M - 1) { first[ID(b, z)] = 0; before[ID(b, z)] = false };
    for (z : 0 .. GENS - 1) { sent[SENT(b, z)] = 0 };
    for (z : 0 .. WORDS) { said_at[SEQ(b, z)] = 0 };
    due[b] = false; ended[b] = 0; gone[b] = 0; seq[b] = 0; slept[b] = 0;
    heard_boot[b] = 0; heard_seq[b] = 0; heard_at[b] = 0; here[b] = false; peer_leaves[b] = false;
    forget_peer(b);
#ifdef COVERAGE
    cover_at[b] = 0;
#endif
    do :: nempty(net[b]) -> net[b]?kind, p1, p2, p3, p4, p5 :: empty(net[b]) -> break od
}

/* A debt that waits for room is a level (C3, B6), with the newest generation that waits. */
#ifdef W18  /* only where there is a session that is full; without any the debt just waits */
#define WAITS(b) (dirty[b] && go[b] && owner[b] == NOBODY && !ROOM(b) && SESSIONS(b))
#else
#define WAITS(b) (dirty[b] && go[b] && owner[b] == NOBODY && !ROOM(b))
#endif
#define LEVEL(b) (WAITS(b) -> gen[b] : 0)
#define CAN_SAY(b) (len(net[OTHER(b)]) < NETQ - 1)
#define RUNS(b) (up[b] && !asleep[b])
#define ON(b) RUNS(b) && CAN_SAY(b)
#define KNOWS(b) (here[b] && up[OTHER(b)] && seq[b] != 0)

#ifdef W17  /* only where it was able or full when last heard */
#define MAY_HOLD(b) (able[b] == 1 || peer_full[b] != 0)
#else
#define MAY_HOLD(b) true
#endif

#ifdef ONE  /* who gets no answer goes to the other */
#define UNHEARD(b, k) heading[ID(b, k)] = false; heading[ID(OTHER(b), k)] = up[OTHER(b)]
#else
#define UNHEARD(b, k) heading[ID(b, k)] = false
#endif

#ifdef CALM /* nobody waits A, or 3.5 s for who said that he leaves */
#define TIMELY(b) (!departed[OTHER(b)])
#else
#define TIMELY(b) true
#endif
#define COMES(b, l) (live[l] && at[l] == NOWHERE && !leaving[b])
#define FILLS(b, l) (live[l] && at[l] == (b) && busy[l] != 0 && !no_room[l])
#define EMPTIES(b, l) (live[l] && at[l] == (b) && busy[l] == 0 && no_room[l])

/* Which bridge dies, sleeps or leaves, and which listener dies. */
#if defined(FIRST)
#define GOES(b) ((b) == 0)
#elif defined(SECOND)
#define GOES(b) ((b) == 1)
#else
#define GOES(b) true
#endif

proctype Bridge(byte b) {
end: do
    /* One event, and what follows from it. */
    :: atomic {
        if
        /* B1. */
        :: ON(b) && heading[ID(b, 0)] -> hear_trigger(b, 0)
#if M > 1
        :: ON(b) && heading[ID(b, 1)] -> hear_trigger(b, 1)
#endif
        /* B2: never early. */
        :: ON(b) && due[b] && !delayed ->
            due[b] = false; what = MARKS;
#ifdef W15
            who = 0
#else
            who = NOID
#endif
        :: ON(b) && ended[b] == 1 -> ended[b] = 0; what = MARKS; who = NOID; alone = true
        :: ON(b) && gone[b] == 1 -> gone[b] = 0; what = MARKS; who = NOID
        /* C9: the first that answers. */
        :: ON(b) && COMES(b, 0) -> what = GREETS; who = 0
        :: ON(b) && COMES(b, 1) -> what = GREETS; who = 1
        :: ON(b) && at[0] == b && nempty(covers[0]) -> what = COVERS; who = 0
        :: ON(b) && at[1] == b && nempty(covers[1]) -> what = COVERS; who = 1
        /* B8: noticed in its own time. */
        :: ON(b) && at[0] == b && !live[0] -> what = LEAVES; who = 0
        :: ON(b) && at[1] == b && !live[1] -> what = LEAVES; who = 1
        /* L5, B6. */
        :: ON(b) && FILLS(b, 0) -> no_room[0] = true; slot[0] = 0; if :: owner[b] == 0 -> owner[b] = NOBODY :: else -> skip fi
        :: ON(b) && FILLS(b, 1) -> no_room[1] = true; slot[1] = 0; if :: owner[b] == 1 -> owner[b] = NOBODY :: else -> skip fi
        :: ON(b) && EMPTIES(b, 0) -> no_room[0] = false
        :: ON(b) && EMPTIES(b, 1) -> no_room[1] = false
        :: RUNS(b) && nempty(net[b]) -> net[b]?kind, p1, p2, p3, p4, p5; what = HEARS
        :: ON(b) && f_twice > 0 && len(net[b]) < NETQ && net[b]?[COVERED, p1, p2, p3, p4, p5] ->
            f_twice--;
            net[b]?kind, p1, p2, p3, p4, p5; net[b]!kind, p1, p2, p3, p4, p5;
            what = HEARS
#ifndef CALM
        /* C2: the deferral ends. */
        :: ON(b) && dirty[b] && !go[b] && IN_TIME(b) -> go[b] = true
#endif
        :: ON(b) && KNOWS(b) && said_able[b] != ROOM(b) ->
            said_able[b] = ROOM(b);
            net[OTHER(b)]!ABLE, said_able[b], 0, 0, 0, 0
        :: ON(b) && KNOWS(b) && said_full[b] != LEVEL(b) ->
            said_full[b] = LEVEL(b);
            net[OTHER(b)]!FULL, said_full[b], 0, 0, 0, 0
        /* C3: whoever has or gets room acts on it. */
        :: ON(b) && peer_full[b] != 0 && peer_full[b] != acted[b] && ROOM(b) && W14_OR(SAME_STORE) ->
            acted[b] = peer_full[b]; what = MARKS; who = NOID; alone = true
        :: ON(b) && up[OTHER(b)] && seq[b] < WORDS && !leaving[b] ->
            seq[b]++; said_at[SEQ(b, seq[b])] = CLOCK(b) + 1;
            net[OTHER(b)]!MEMBER, boot[b], seq[b], 0, 0, 0
        /* C1, C5: silent for 3.5 s. */
        :: ON(b) && here[b] && (!up[OTHER(b)] || boot[OTHER(b)] != heard_boot[b]) && empty(net[b]) && TIMELY(b) ->
            here[b] = false;
#ifndef NO_C5
            if :: MAY_HOLD(b) && !departed[OTHER(b)] -> arm(gone[b]) :: else -> skip fi;
#endif
            forget_peer(b)
        /* C7: said first; then the sessions end; then what is owed goes to the others, and the process. */
        :: ON(b) && f_leave > 0 && GOES(b) && !leaving[b] && up[OTHER(b)] ->
            f_leave--; leaving[b] = true;
            net[OTHER(b)]!MEMBER, boot[b], seq[b], 1, 0, 0
#ifdef W20  /* timers are told before the sessions end */
            ; hand_over(b)
#endif
        :: ON(b) && leaving[b] && at[0] == b && live[0] -> what = LEAVES; who = 0
        :: ON(b) && leaving[b] && at[1] == b && live[1] -> what = LEAVES; who = 1
        :: ON(b) && leaving[b] && !SESSIONS(b) && len(net[OTHER(b)]) < 2 && empty(net[b]) ->
#ifndef W20
            hand_over(b);
#endif
            departed[b] = true;
            forget(b)
        fi;
        if
        :: what == GREETS -> greet(b, who)
        :: what == COVERS -> take_cover(b, who)
        :: what == LEAVES -> leave(b, who)
        :: what == HEARS -> hear(b)
        :: else -> skip
        fi;
        if :: what == MARKS -> mark(b, who) :: else -> skip fi;
        hand_out(b);
        what = 0; who = 0; alone = false }
    /* A trigger that meets nobody is lost. */
    :: atomic { !up[b] && heading[ID(b, 0)] -> UNHEARD(b, 0) }
#if M > 1
    :: atomic { !up[b] && heading[ID(b, 1)] -> UNHEARD(b, 1) }
#endif
    :: atomic { f_bridge > 0 && GOES(b) && up[b] ->
        f_bridge--;
        if :: at[0] == b -> cut(0) :: else -> skip fi;
        if :: at[1] == b -> cut(1) :: else -> skip fi;
        forget(b) }
    :: atomic { f_again > 0 && !up[b] -> f_again--; up[b] = true; boot[b]++; departed[b] = false }
    :: atomic { f_suspend > 0 && GOES(b) && up[b] && !asleep[b] -> f_suspend--; asleep[b] = true }
    /* B15: triggers may have been missed. Numbers from before count for nothing (C4). */
    :: atomic { asleep[b] ->
        asleep[b] = false;
#ifndef W2  /* they count */
        for (z : 0 .. WORDS) { said_at[SEQ(b, z)] = 0 };
#endif
        if :: known[b] -> mark(b, NOID); hand_out(b) :: else -> skip fi }
    od
}

/* ================================================ the listeners ================================================== */

#define READS(l) (SAME_STORE || (l) == 1)

inline die(l) {
    live[l] = false; owed[l] = false; busy[l] = 0; lgen[l] = 0; learned[l] = 0; slot[l] = 0;
    do :: nempty(covers[l]) -> covers[l]?p1, p2 :: empty(covers[l]) -> break od
}

#ifdef SEATED   /* nobody receives of whom no bridge knows: only the sweep finds a lease of such a one */
#define MAY_LOOK(l) (at[l] != NOWHERE)
#else
#define MAY_LOOK(l) true
#endif

/* A receive is one step here, with its answer: what crosses it is wake.pml's. Its cover lies in a buffer for any time. */
proctype Listener(byte l) {
end: do
    :: atomic { live[l] && slot[l] != 0 ->
        if :: slot[l] > lgen[l] -> lgen[l] = slot[l]; learned[l] = now :: else -> skip fi;
        slot[l] = 0; owed[l] = true }
    /* L1: the snapshot is taken before. A full batch: the look stays owed. */
    :: atomic { live[l] && owed[l] && busy[l] == 0 && len(covers[l]) < COVERQ && MAY_LOOK(l) ->
        if
        :: visible > 0 && READS(l) ->
            visible--;
            if
            :: skip
            :: f_hang > 0 -> f_hang--; busy[l] = 1
            :: f_slow > 0 -> f_slow--; busy[l] = 2
            :: f_crash > 0 && GOES(l) -> f_crash--; dead++; die(l)
            fi
        :: else ->
            owed[l] = false;
            if
            :: at[l] != NOWHERE && lgen[l] != 0 ->
                covers[l]!lgen[l], now - learned[l];
#ifdef COVERAGE
                cover_true = now + 1
#endif
            :: else -> skip
            fi
        fi }
    :: atomic { live[l] && busy[l] == 2 -> busy[l] = 0; lapse() }
    :: atomic { live[l] && f_crash > 0 && GOES(l) -> f_crash--; dead = dead + (busy[l] != 0); die(l) }
    od
}

/* ================================================ the rest of the world ========================================== */

#define PUBLISH(b) heading[ID(b, puts)] = up[b]

proctype World() {
end: do
    /* P1: published when it is visible. */
    :: atomic { puts < M ->
#ifdef TWIN
        visible++; delayed = true;
#elif defined(LATER)
        if :: puts == M - 1 -> delayed = true :: else -> visible++ fi;
#else
        visible++;
#endif
        if
#ifdef ONE  /* by HTTP, or from a shared consumer: to one, which answers for it */
        :: up[0] -> heading[ID(0, puts)] = true
        :: up[1] -> heading[ID(1, puts)] = true
        :: !up[0] && !up[1] -> skip
#else
        :: PUBLISH(0); PUBLISH(1)
        :: f_trigger > 0 -> f_trigger--; PUBLISH(0)
        :: f_trigger > 0 -> f_trigger--; PUBLISH(1)
#endif
        fi;
        puts++ }
    :: atomic { delayed -> delayed = false; visible++ }
    :: atomic { dead > 0 ->
        dead--; visible++; lapse() }
    :: atomic { now < TICKS && URGENT(0) && URGENT(1) ->
        now++;
        for (z : 0 .. 1) {
#ifdef DEADLINE /* C2: a debt is dispatched A after its oldest mark */
            assert(!RUNS(z) || !dirty[z] || go[z] || now < oldest[z] + DEADLINE);
#endif
#ifdef STOPS    /* and not a clock that goes on */
            if :: asleep[z] -> slept[z]++ :: else -> skip fi
#else
            skip
#endif
        } }
    od
}

/* Words between bridges that are lost, and `covered` that are late. */
proctype Wire(byte b) {
end: do
    :: atomic { f_lost > 0 && nempty(net[b]) ->
        f_lost--;
        net[b]?kind, p1, p2, p3, p4, p5;
        /* A level is repeated while it lasts. */
        if :: kind == FULL -> said_full[OTHER(b)] = GENS :: else -> skip fi }
    :: atomic { f_late > 0 && len(net[b]) > 1 && net[b]?[COVERED, p1, p2, p3, p4, p5] ->
        f_late--;
        net[b]?kind, p1, p2, p3, p4, p5; net[b]!kind, p1, p2, p3, p4, p5 }
    od
}

#define CAN_TAKE(l) (live[l] && busy[l] == 0 && READS(l))

/* Looks at rest: the property. */
proctype Rest() {
end: do
    :: timeout ->
        assert(!(visible > 0 && (CAN_TAKE(0) || CAN_TAKE(1)) && (up[0] || up[1])));     /* a lost wake */
        break
    od
}

#ifdef EXACTLY  /* each as often as it may, wherever it can: fewer states, and no verdict for less faults */
#define CHOOSE(have, most) have = most
#else
#define CHOOSE(have, most) do :: have < most -> have++ :: break od
#endif

init {
    atomic {
        CHOOSE(f_trigger, F_TRIGGER); CHOOSE(f_lost, F_LOST); CHOOSE(f_late, F_LATE); CHOOSE(f_twice, F_TWICE);
        CHOOSE(f_bridge, F_BRIDGE); CHOOSE(f_again, F_AGAIN); CHOOSE(f_crash, F_CRASH); CHOOSE(f_hang, F_HANG);
        CHOOSE(f_slow, F_SLOW); CHOOSE(f_leave, F_LEAVE); CHOOSE(f_suspend, F_SUSPEND);
        at[0] = AT0; at[1] = AT1;
        for (z : 0 .. 1) {
            up[z] = true; boot[z] = 1; owner[z] = NOBODY; known[z] = true; able[z] = 2;
            live[z] = at[z] != NOWHERE;
            /* The members know each other, and all is calm. */
            seq[z] = 1; said_at[SEQ(z, 1)] = 1; heard_boot[z] = 1; heard_seq[z] = 1; heard_at[z] = 1; here[z] = true
        };
#ifdef JOIN /* the first bridge is new */
        seq[0] = 0; said_at[SEQ(0, 1)] = 0; heard_boot[1] = 0; heard_seq[1] = 0; heard_at[1] = 0; here[1] = false;
        heard_boot[0] = 0; heard_seq[0] = 0; heard_at[0] = 0; here[0] = false; known[0] = false;
#endif
        for (z : 0 .. 1) {
            if :: here[OTHER(z)] && ROOM(z) -> able[OTHER(z)] = 1; said_able[z] = 1 :: else -> said_able[z] = 0 fi
        };
#ifdef FRESH /* the first bridge has just met its listener, and owes it a look of its own (B10) */
        gen[0] = 1; dirty[0] = true; go[0] = true; bare[0] = 1; hand_out(0);
#endif
        run Bridge(0); run Bridge(1); run World(); run Wire(0); run Wire(1); run Rest();
        run Listener(0);
        if :: AT1 != NOWHERE -> run Listener(1) :: else -> skip fi
    }
}
