/*
 * The wake protocol of one queue that lives elsewhere, as a Promela model. README.md beside this file says what is
 * modelled, what is not, how to run it, and which function of the code each rule here stands for.
 *
 * Time is left out: what a timer guards may happen at any moment that its rule allows. What has to hold, holds at rest,
 * when nothing can happen any more: no message is visible while a live listener has a free slot.
 */

/* -- the size of the world ---------------------------------------------------------------------------------------- */
#ifndef NL
#define NL 2            /* listeners */
#endif
#ifndef M
#define M 2             /* messages put */
#endif
#ifndef SLOTS
#define SLOTS 1         /* handler slots of a listener */
#endif
#ifndef DELAYED
#define DELAYED 0       /* how many of the messages become visible later than they are put */
#endif

/* -- how often each fault may happen; each run chooses from 0 up to that, so that rest is reached with any of them -- */
#ifndef F_PRODUCER
#define F_PRODUCER 0    /* the producer dies between put and publish */
#endif
#ifndef F_BUS
#define F_BUS 0         /* a trigger is lost on its way */
#endif
#ifndef F_UP
#define F_UP 0          /* a frame to the bridge is lost */
#endif
#ifndef F_DOWN
#define F_DOWN 0        /* a frame to a listener is lost */
#endif
#ifndef F_CUT
#define F_CUT 0         /* a connection breaks; each side notices in its own time */
#endif
#ifndef F_CRASH
#define F_CRASH 0       /* a listener dies */
#endif
#ifndef F_REVIVE
#define F_REVIVE 0      /* a new instance of it starts */
#endif
#ifndef F_STOP
#define F_STOP 0        /* a listener is asked to stop */
#endif
#ifndef F_BRIDGE
#define F_BRIDGE 0      /* the bridge dies and starts again */
#endif
#ifndef F_UNKNOWN
#define F_UNKNOWN 0     /* a receive ends without an answer */
#endif
#ifndef F_ERROR
#define F_ERROR 0       /* a receive fails for certain */
#endif
#ifndef F_HANG
#define F_HANG 0        /* a handler never ends */
#endif
#ifndef F_HASTY
#define F_HASTY 0       /* a time-out of the bridge runs out although frames are on their way */
#endif
#ifndef F_FORGET
#define F_FORGET 0      /* the bridge forgets a clean queue that nobody listens to */
#endif

#ifndef COUNTER_MAX
#define COUNTER_MAX 250 /* more marks than any run needs: a loop of marks would be one of receives, for ever */
#endif

#define NOBODY NL
#define UPQ 5
#define DOWNQ 3         /* wakes leave one place for a welcome, or both sides would wait for each other */

/* Frames. */
#define HELLO 1
#define STARTED 2
#define COVER 3
#define MORE 4
#define ROOM 5
#define BEAT 6
#define BYE 7
#define WELCOME 8
#define WAKE 9

/* Levels in a heartbeat and in a bye; a `more` that no wake is the reason for says UNANNOUNCED. */
#define L_FREE 1
#define L_RECEIVING 2
#define L_LEASES 4
#define L_IDLE 8
#define UNANNOUNCED 1

/* Receives: asked for, executed and found empty, executed and found a message. */
#define ASKED 1
#define EMPTY 2
#define FOUND 3

/* kind, instance, boot, gen, levels, covered */
chan up[NL] = [UPQ] of { byte, byte, byte, byte, byte, byte };
/* kind, boot, gen */
chan down[NL] = [DOWNQ] of { byte, byte, byte };

/* -- the store ---------------------------------------------------------------------------------------------------- */
byte visible;
byte delayed;           /* put, not yet visible */
byte dead[NL];          /* leases of processes that ended */

/* -- producer and bus --------------------------------------------------------------------------------------------- */
byte puts;
#ifdef V5
byte early;             /* published and not yet visible */
#endif
bool put_bit;           /* P3: something was put since the last publish began */
bool due_bit;           /* the same for what is delayed */
byte sending;           /* 1 on its way, 2 answered */
bool sending_due;

/* -- the bridge --------------------------------------------------------------------------------------------------- */
bool serving = true;
byte boot = 1;
byte counter;           /* B1: generations of this boot */
byte gen;
bool dirty;
bool heard;             /* covered, or dirty, at some time in this boot (B10) */
byte owner = NOBODY;
byte unacked;           /* the newest generation the owner has not answered with `started`; 0 none (B4) */
bool started;           /* a receive of the owner is known to have begun (B5) */
bool due;               /* B2: a due time is kept for what is delayed */

bool seat[NL];
byte seated[NL];        /* the instance that has the seat */
byte slot[NL];          /* the newest wake not yet sent; 0 none (B3) */
byte woken[NL];         /* the newest wake sent */
bool asked[NL];
bool no_room[NL];       /* said `more` (B6) */
bool barred[NL];        /* no progress after `started` (B5) */
bool recent[NL];        /* a wake was sent less than D ago, and a heartbeat may have crossed it */
bool touched[NL];       /* may hold a lease that no heartbeat told of (B8) */
bool told_leases[NL];   /* the last heartbeat told of leases */
bool end_timer[NL];     /* now + V, armed when a session ended (B8) */
byte end_waits[NL];     /* leases that end before that timer */
bool told_timer[NL];    /* the end of a lease as it was told; renewed since, for all the bridge knows */
bool refused[NL];       /* `more` came since the last word of room; only the assertion of B6 reads it */
#ifdef V15
bool heard_id;          /* the one business id that all messages have */
#endif

/* Scratch of one atomic step: no part of any state. */
hidden byte y, z, kind, who, b, g, levels, covered;
hidden byte by_wake;

/* -- the listeners ------------------------------------------------------------------------------------------------ */
bool live[NL];
byte instance[NL];
bool stopping[NL];
bool cut[NL];           /* the connection is broken: what is sent goes nowhere */
bool push[NL];          /* a welcome stands */
byte lboot[NL];
byte lgen[NL];          /* generation learned */
byte lcovered[NL];      /* generation covered */
bool owed[NL];          /* covered < epoch */
byte rx[NL];            /* the receive in flight */
bool fresh[NL];         /* ... began at the current epoch */
byte rboot[NL];         /* ... and its snapshot */
byte rgen[NL];
bool say_started[NL];
byte busy[NL];          /* handlers running */
byte hung[NL];          /* of these, for ever */
bool retry[NL];         /* a look waits for the store to recover */
bool back[NL];          /* a timer for leases of nobody (L6) */
bool late[NL];          /* a receive given up on may still be executed */
byte unknown[NL];       /* leases of nobody */
bool news[NL];          /* a look is owed for a reason that is none of the bridge's wakes (L6, L7, L10) */
bool told[NL];          /* ... and the bridge heard of it in this session */
bool pays[NL];          /* the receive in flight began after that reason */
bool rumour_free[NL];   /* what the bridge believes of our room */
bool rumour_barred[NL];
bool more_stands[NL];

/* -- faults left -------------------------------------------------------------------------------------------------- */
byte f_producer, f_bus, f_up, f_down, f_cut, f_crash, f_revive, f_stop, f_bridge, f_unknown, f_error, f_hang, f_hasty, f_forget;
bool swept;             /* one sweep was made since the last fault */
bool looked;            /* every dead-man fired since then */
#define FAULT swept = false; looked = false

#define HELD(i) (busy[i] > 0 || unknown[i] > 0 || late[i])
#define AVAILABLE(i) (SLOTS - busy[i] - (rx[i] != 0))
#define CAN_TAKE(i) (live[i] && !stopping[i] && AVAILABLE(i) > 0)
#define HAS_ROOM(k) (seat[k] && !no_room[k] && !barred[k])
#define SAYS_FREE(i) (!stopping[i] && !retry[i] && AVAILABLE(i) > 0)
#define IDLE(i) (!stopping[i] && !retry[i] && busy[i] == 0 && rx[i] == 0 && !HELD(i))

/* ================================================ the bridge's rules ============================================= */

/* B3: one slot a session; unsent wakes merge. */
inline write(k) { slot[k] = gen }

inline disown() {
    owner = NOBODY; unacked = 0; started = false;
    for (z : 0 .. NL - 1) { asked[z] = false }
}

inline settle() { dirty = false; disown() }

/*
 * B3: the owner is a session with room, here any of them. B6: without one the debt waits, unowned. The code offers the
 * debt wherever something may have made room; that is every event, so here each step of the bridge ends with it.
 */
inline hand_out(besides) {
    if
    :: dirty && owner == NOBODY ->
        y = NOBODY;
        if
        :: HAS_ROOM(0) && besides != 0 -> y = 0
#if NL > 1
        :: HAS_ROOM(1) && besides != 1 -> y = 1
#endif
#if NL > 2
        :: HAS_ROOM(2) && besides != 2 -> y = 2
#endif
        :: else -> skip
        fi;
        if
        :: y < NOBODY ->
            /* B6: nobody is woken who said that there is no room. */
            assert(!no_room[y] && !refused[y]);
            disown();
            owner = y; asked[y] = true; unacked = gen;
            write(y);
#ifdef V3   /* wake one and forget */
            settle()
#endif
        :: else -> skip
        fi
    :: else -> skip
    fi
}

/* B1: one counter a boot. I8: merged, never dropped. */
inline mark() {
#ifdef V6   /* dropped while somebody is at it */
    if :: owner == NOBODY ->
#endif
    counter++;
    assert(counter < COUNTER_MAX);
#ifdef V19  /* a counter of the queue's own, which begins anew with it */
    gen++;
#else
    gen = counter;
#endif
    dirty = true; heard = true;
#ifndef V12 /* a mark while owned tells nobody */
    if :: owner != NOBODY -> write(owner); unacked = gen :: else -> skip fi     /* B3 */
#endif
#ifdef V6
    :: else -> skip
    fi
#endif
}

/* B8: what it owned goes to others, what it may have held gets a timer. */
inline leave(k) {
    seat[k] = false; slot[k] = 0; asked[k] = false; refused[k] = false;
#ifndef V7  /* no timer at the end of a session */
    if :: told_leases[k] -> told_timer[k] = true :: else -> skip fi;
    if :: touched[k] -> end_timer[k] = true; end_waits[k] = dead[k] :: else -> skip fi;
#endif
    if :: owner == k -> disown() :: else -> skip fi
}

inline take_seat(k, who) {
    /* B10: a hello never marks, except that a queue never heard of is born dirty. */
#if !defined(V4) && !defined(V1)   /* no look after a restart */
    if
    :: !heard && !dirty -> counter++; gen = counter; dirty = true; heard = true
    :: else -> skip
    fi;
#endif
    heard = true;
    seat[k] = true; seated[k] = who;
    no_room[k] = false; barred[k] = false; refused[k] = false;
    down[k]!WELCOME, boot, gen
}

inline greet(k, who) {
    if
#ifdef V17  /* a new instance inherits what the old one said */
    :: seat[k] && seated[k] != who -> slot[k] = 0
#endif
    /* A later hello of the same session keeps what it was told and what it reported. */
    :: seat[k] && seated[k] == who -> skip
    /* S1: a session is replaced; so it also is where a new instance takes the place of one that died. */
    :: seat[k] -> leave(k); fresh_seat(k)
    :: !seat[k] -> fresh_seat(k)
    fi;
    take_seat(k, who)
}

/* B8: until its first heartbeat says that it is idle, nobody knows what a session holds. */
inline fresh_seat(k) {
#ifdef W2   /* born as if it held nothing */
    touched[k] = false;
#else
    touched[k] = true;
#endif
    told_leases[k] = false; woken[k] = 0; slot[k] = 0; recent[k] = false
}

/* What barred it is over (B5). */
inline progress(k) { barred[k] = false }

/* B3, B4, B5. */
inline take_started(k, g) {
    touched[k] = true;
    progress(k);
    if
    :: dirty ->
        if
        :: owner == k || owner == NOBODY || (g >= gen && unacked != 0) ->
            if
            :: owner != k ->
                disown();
                owner = k;
                if :: g < gen -> unacked = gen :: else -> skip fi
            :: else -> skip
            fi;
            if :: unacked <= g -> unacked = 0 :: else -> skip fi;
            if
            :: unacked == 0 ->
                for (z : 0 .. NL - 1) { asked[z] = (z == k) }
            :: else -> skip
            fi;
            started = true
        :: else -> skip
        fi
    :: else -> skip
    fi
}

/*
 * B6: the cascade. L6, L7: some tell of what no trigger tells of, and no cover on its way has seen; the others stand for
 * a generation that is owed all the same.
 */
inline take_more(k, levels) {
    touched[k] = true; refused[k] = true;
#ifndef V11 /* nobody remembers who is full */
    no_room[k] = true;
#endif
    barred[k] = false;
    if :: owner == k -> disown() :: else -> skip fi;
#ifndef W4  /* such a `more` is taken for any other */
    if
#ifdef W5   /* every `more` is a mark, that of a wake which met no slot too */
    :: true -> mark()
#else
    :: levels == UNANNOUNCED -> mark()
    :: else -> skip
#endif
    fi
#endif
}

inline take_room(k) {
    no_room[k] = false; refused[k] = false;
    progress(k)
}

/* B7, I3: marks are settled by a look that knew of them; never leases, never timers. */
inline take_cover(k, b, g) {
    if
    :: dirty ->
        if
#ifdef V9   /* any cover settles anything */
        :: true ->
#else
        :: g >= gen && g <= counter ->
#endif
            assert(b == boot && g >= gen);  /* I3 */
            settle();
#ifdef V14S /* a cover settles what is not due yet */
            due = false;
            for (z : 0 .. NL - 1) { end_timer[z] = false; told_timer[z] = false }
#endif
#ifndef V9
        :: else ->
            if
            :: owner == k && unacked == 0 -> write(k); unacked = gen
            :: else -> skip
            fi
#endif
        fi
    :: else -> skip
    fi
}

/* S2: levels, repeated, heal whatever frame was lost. */
inline take_beat(k, b, g, levels, covered) {
    told_leases[k] = (levels & L_LEASES) != 0;
#ifndef W1  /* a session that was barred stays so when it is seen idle */
    if
    :: (levels & L_FREE) && !(levels & L_RECEIVING) -> progress(k)
    :: else -> skip
    fi;
#endif
    no_room[k] = !(levels & L_FREE); refused[k] = no_room[k];
    if
    :: no_room[k] && !(levels & L_RECEIVING) && g >= woken[k] && owner == k -> disown()
    :: else -> skip
    fi;
    /* B8: an idle heartbeat says nothing of a wake that it crossed; D after the last one none can be on its way. */
    if
    :: (levels & L_IDLE) && g >= woken[k] &&
#ifndef W3  /* by the generation alone, which the listener may know from the welcome or from a wake before */
        !recent[k] &&
#endif
        true -> touched[k] = false
    :: else -> skip
    fi;
    if :: dirty && covered >= gen -> take_cover(k, b, covered) :: else -> skip fi
}

inline take_bye(k, levels) {
    /* Ends that no renewal moves any more: the timer waits for them. */
    told_leases[k] = false;
    touched[k] = (levels & L_LEASES) != 0;
    leave(k)
}


/* What the bridge hears from one place. S1: of an instance that was replaced only covers count. */
inline hear(k) {
    up[k]?kind, who, b, g, levels, covered;
    if
    :: kind == HELLO -> greet(k, who)
    :: kind == COVER && seat[k] ->
        if
        :: b == boot ->
            if :: who == seated[k] -> progress(k) :: else -> skip fi;
            heard = true;
            take_cover(k, b, g)
        :: else -> skip     /* I3: generations of two boots are never compared */
        fi
    :: kind == STARTED && seat[k] && b == boot &&
#ifndef V17
        who == seated[k] &&
#endif
        true -> take_started(k, g)
    :: kind == MORE && seat[k] && who == seated[k] -> take_more(k, levels)
    :: kind == ROOM && seat[k] && who == seated[k] -> take_room(k)
    :: kind == BEAT && seat[k] && who == seated[k] -> take_beat(k, b, g, levels, covered)
    :: kind == BYE && seat[k] && who == seated[k] -> take_bye(k, levels)
    :: else -> skip
    fi
}

#ifdef W3
#define CROSSES(i) false
#else
#define CROSSES(i) (len(down[i]) > 0 || slot[i] != 0)
#endif
/* Whether a heartbeat of this listener would tell the bridge anything new: only such are sent, or rest never comes. */
#define NEWS(i) (no_room[i] == SAYS_FREE(i) || told_leases[i] != HELD(i) || IDLE_NEWS(i) || \
                 BARRED_NEWS(i) || (dirty && lcovered[i] >= gen))
#ifdef W1
#define BARRED_NEWS(i) false
#else
#define BARRED_NEWS(i) (barred[i] && rx[i] == 0 && SAYS_FREE(i))
#endif
#define IDLE_NEWS(i) (touched[i] && IDLE(i) && lgen[i] >= woken[i] && !CROSSES(i))

/* A time-out runs out where nothing is on its way; and as often as chosen, although something is. */
#define QUIET(k) (len(up[k]) == 0 && len(down[k]) == 0 && slot[k] == 0 && rx[k] == 0)
#ifdef SLOW    /* a receive may outlast A, any number of times */
#define UNANSWERED(k) (len(up[k]) == 0 && len(down[k]) == 0 && slot[k] == 0)
#else
#define UNANSWERED(k) QUIET(k)
#endif
#define EARLY(k, in_time) if :: in_time -> skip :: !(in_time) -> f_hasty-- fi

/* The bridge's half of one session. */
proctype Place(byte k) {
end: do
    :: atomic {
        if
        :: serving && nempty(up[k]) -> hear(k)
        /* B3: what is taken to be sent no longer merges. */
        :: serving && seat[k] && slot[k] != 0 && len(down[k]) < DOWNQ - 1 ->
            if :: !cut[k] && live[k] && instance[k] == seated[k] -> down[k]!WAKE, boot, slot[k] :: else -> skip fi;
            woken[k] = slot[k]; slot[k] = 0; touched[k] = true; recent[k] = true
        /* B8: lost, or silent for D. */
        :: serving && seat[k] && (cut[k] || !live[k] || instance[k] != seated[k]) -> leave(k)
        /* B4: no `started` within A; the owner again, and others. */
        :: serving && dirty && owner == k && unacked != 0 && slot[k] == 0 && (UNANSWERED(k) || f_hasty > 0) ->
            EARLY(k, UNANSWERED(k));
            write(k); unacked = gen;
            for (z : 0 .. NL - 1) {
                if :: HAS_ROOM(z) && !asked[z] -> write(z); asked[z] = true :: else -> skip fi
            }
#ifndef NO_B5
        /* B5: neither a cover nor a newer receive within R + H; every receive ends within R (L3). */
        :: serving && dirty && owner == k && started && (QUIET(k) || f_hasty > 0) ->
            EARLY(k, QUIET(k));
            disown(); barred[k] = true
#endif
        /* B8, B2: the longest lease that the session may have left has ended. */
        :: serving && end_timer[k] &&
#ifndef V14E
            end_waits[k] == 0 &&
#endif
            true -> end_timer[k] = false; end_waits[k] = 0; mark()
        :: serving && told_timer[k] -> told_timer[k] = false; mark()
        fi;
        hand_out(NOBODY) }
    od
}

inline reset_queue() {
    gen = 0; dirty = false; heard = false; due = false; disown()
}

proctype Bridge() {
end: do
    /* B1: marked before it is acknowledged. */
    :: atomic {
        if
        :: serving && sending == 1 ->
        if
#ifdef V1   /* without a subscriber it is nobody's */
        :: !seat[0]
#if NL > 1
            && !seat[1]
#endif
            -> skip
#endif
#ifdef V15  /* two publishes with one business id are taken for one */
        :: heard_id -> skip
#endif
        :: else ->
#ifdef V15
            heard_id = true;
#endif
            if
            :: sending_due -> due = true    /* B2: a timer, not a mark */
            :: else -> mark()
            fi
        fi;
        sending = 2
    /* B2: rounded up, never early. */
        :: serving && due &&
#ifndef V14E
        delayed == 0 &&
#endif
        true -> due = false; mark()
        fi;
        hand_out(NOBODY) }
    /* A trigger to a bridge that is away is lost. B10 makes up for it. */
    :: atomic { !serving && sending == 1 -> sending = 2; FAULT }
    :: atomic { f_bridge > 0 && serving &&
#ifdef SEATED /* and not while it alone knows of a lease */
        dead[0] == 0 &&
#if NL > 1
        dead[1] == 0 &&
#endif
#if NL > 2
        dead[2] == 0 &&
#endif
#endif
        true ->
        f_bridge--; FAULT;
        serving = false; counter = 0; reset_queue();
#ifdef V15
        heard_id = false;
#endif
        for (z : 0 .. NL - 1) {
            seat[z] = false; seated[z] = 0; slot[z] = 0; woken[z] = 0; no_room[z] = false; barred[z] = false;
            touched[z] = false; recent[z] = false; told_leases[z] = false; end_timer[z] = false; end_waits[z] = 0;
            told_timer[z] = false; refused[z] = false; cut[z] = true
        };
        for (z : 0 .. NL - 1) {
            do :: nempty(up[z]) -> up[z]?kind, who, b, g, levels, covered :: empty(up[z]) -> break od;
            do :: nempty(down[z]) -> down[z]?kind, b, g :: empty(down[z]) -> break od
        } }
    :: atomic { !serving -> serving = true; boot++ }
    /* B1: a queue that is forgotten and met again must never meet an old cover. */
    :: atomic { f_forget > 0 && serving && !dirty && !due && !seat[0] && !end_timer[0] && !told_timer[0] &&
#if NL > 1
        !seat[1] && !end_timer[1] && !told_timer[1] &&
#endif
#if NL > 2
        !seat[2] && !end_timer[2] && !told_timer[2] &&
#endif
        heard -> f_forget--; reset_queue() }
    od
}

/* ================================================ the listener's rules =========================================== */

inline say(i, what, wb, wg, wl) {
    if
    :: cut[i] || !serving -> skip
    :: else -> up[i]!what, instance[i], wb, wg, wl, lcovered[i]
    fi
}

/* L1: owe a look that no receive begun until now can pay. */
inline look(i) { owed[i] = true; fresh[i] = false; retry[i] = false }

/* The same for a reason that the bridge does not know. */
inline look_alone(i) { look(i); news[i] = true; told[i] = false; pays[i] = false }

/* L5. `again`: although it stands, for a wake crossed it. */
inline say_more(i, again) {
    if
    :: push[i] && (again || !more_stands[i]) ->
        rumour_free[i] = false; rumour_barred[i] = true; more_stands[i] = true;
        say(i, MORE, lboot[i], lgen[i], (news[i] && !told[i] -> UNANNOUNCED : 0));
        told[i] = news[i]
    :: else -> skip
    fi
}

/* L1: the snapshot belongs to one request and is taken before it goes to the transport. L4: `started` now. */
inline begin(i) {
    rx[i] = ASKED; fresh[i] = true; pays[i] = news[i]; rboot[i] = lboot[i]; rgen[i] = lgen[i];
    if
    :: say_started[i] && push[i] ->
        say_started[i] = false; more_stands[i] = false;
        say(i, STARTED, lboot[i], lgen[i], 0)
    :: else -> skip
    fi
}

/* L2, L5: begin what is owed and fits; say what the bridge must know of the rest. */
inline advance(i, by_wake) {
#ifdef V10  /* handlers are part of the drain */
    if :: busy[i] == 0 ->
#endif
    if
    :: stopping[i] -> skip
    :: else ->
        if
        :: owed[i] && !retry[i] ->
            if :: AVAILABLE(i) > 0 && rx[i] == 0 -> begin(i) :: else -> skip fi;
            if :: !(rx[i] && fresh[i]) && AVAILABLE(i) <= 0 -> say_more(i, by_wake) :: else -> skip fi
        :: else -> skip
        fi;
        if :: busy[i] == SLOTS && rumour_free[i] -> say_more(i, false) :: else -> skip fi;
        if
        :: push[i] && !retry[i] && AVAILABLE(i) > 0 && rumour_barred[i] ->
            rumour_free[i] = true; rumour_barred[i] = false; more_stands[i] = false;
            say(i, ROOM, lboot[i], lgen[i], 0)
        :: else -> skip
        fi
    fi
#ifdef V10
    :: else -> skip
    fi
#endif
}

inline learn(i, nb, ng) {
    if
    :: nb != lboot[i] -> lboot[i] = nb; lgen[i] = ng; lcovered[i] = 0
    :: nb == lboot[i] && ng > lgen[i] -> lgen[i] = ng
    :: else -> skip
    fi
}

inline hear_wake(i, nb, ng) {
    learn(i, nb, ng);
    if
    :: stopping[i] -> say_more(i, true)     /* L12 */
#ifdef V6L  /* dropped while busy */
    :: !stopping[i] && rx[i] != 0 -> rgen[i] = lgen[i]
#endif
#ifdef V18  /* answered by the receive that is in flight already */
    :: !stopping[i] && rx[i] != 0 ->
        owed[i] = true; rgen[i] = lgen[i]; rboot[i] = lboot[i]; fresh[i] = true;
        say(i, STARTED, lboot[i], lgen[i], 0)
#endif
#ifdef V8   /* `started` on receipt; what cannot be done then is nobody's affair */
    :: !stopping[i] && AVAILABLE(i) <= 0 -> say(i, STARTED, lboot[i], lgen[i], 0); look(i); by_wake = 2
#endif
    :: else -> look(i); say_started[i] = true; by_wake = true
    fi
}

/* L8, L1: empty, and nothing happened since the snapshot: cover and idle. */
inline hear_empty(i) {
#ifdef V2   /* the snapshot is taken after the empty receive */
    fresh[i] = true; rgen[i] = lgen[i]; rboot[i] = lboot[i];
#endif
    rx[i] = 0; retry[i] = false;
    if :: pays[i] -> news[i] = false; told[i] = false; pays[i] = false :: else -> skip fi;
    if :: rboot[i] == lboot[i] && rgen[i] > lcovered[i] -> lcovered[i] = rgen[i] :: else -> skip fi;
    if
    :: fresh[i] ->
        if
        :: owed[i] && push[i] && rboot[i] != 0 -> say(i, COVER, rboot[i], rgen[i], 0)
        :: else -> skip
        fi;
        owed[i] = false
    :: else -> skip
    fi;
    fresh[i] = false; rboot[i] = 0; rgen[i] = 0
}

/* A full batch: there may be more, and the look stays owed. */
inline hear_found(i) {
    rx[i] = 0; retry[i] = false; busy[i]++;
    fresh[i] = false; pays[i] = false; rboot[i] = 0; rgen[i] = 0
}

/* L11: after an error always a look, after a pause. */
inline break_off(i) {
    rx[i] = 0; fresh[i] = false; pays[i] = false; rboot[i] = 0; rgen[i] = 0;
    owed[i] = true; retry[i] = true;
    say_more(i, false)
}

inline hear_welcome(i, nb, ng) {
    push[i] = true; say_started[i] = false; told[i] = false;
    rumour_free[i] = true; rumour_barred[i] = false; more_stands[i] = false;
    learn(i, nb, ng);
    if :: retry[i] -> say_more(i, false) :: else -> skip fi
}

inline blank(i) {
    push[i] = false; lboot[i] = 0; lgen[i] = 0; lcovered[i] = 0; owed[i] = false; rx[i] = 0; fresh[i] = false;
    rboot[i] = 0; rgen[i] = 0; say_started[i] = false; busy[i] = 0; hung[i] = 0; retry[i] = false; back[i] = false;
    late[i] = false; unknown[i] = 0; news[i] = false; told[i] = false; pays[i] = false; rumour_free[i] = false; rumour_barred[i] = false;
    more_stands[i] = false; stopping[i] = false;
    do :: nempty(down[i]) -> down[i]?kind, b, g :: empty(down[i]) -> break od
}

/* L11, and the sentence at the head of the wake machine: it sleeps only if somebody or something will wake it. */
inline check(i) {
    assert(rx[i] == 0 || owed[i] || !push[i]);
    assert(!live[i] || stopping[i] || !owed[i] || rx[i] != 0 || retry[i] ||
           (AVAILABLE(i) <= 0 && (more_stands[i] || !push[i])))
}

/* A receive of a process that is gone reaches the store before that, or never. */
inline die(i) {
    dead[i] = dead[i] + busy[i] + unknown[i] + (rx[i] == FOUND);
    live[i] = false;
    blank(i)
}

#define CAN_SAY(i) (len(up[i]) <= UPQ - 3)

proctype Listener(byte i) {
end: do
    /* B10: after the welcome only a wake starts a receive. Said again until it is answered (S2). */
    :: atomic { live[i] && !stopping[i] && !push[i] && serving && empty(up[i]) && empty(down[i]) &&
#ifdef V1   /* checked before it subscribes, and not after */
        !owed[i] &&
#endif
        true ->
        cut[i] = false; say(i, HELLO, 0, 0, 0) }
    :: atomic {
        if
        :: live[i] && CAN_SAY(i) && nempty(down[i]) ->
            down[i]?kind, b, g;
            if
            :: kind == WELCOME -> if :: stopping[i] -> skip :: else -> hear_welcome(i, b, g) fi
            :: kind == WAKE -> hear_wake(i, b, g)
            fi
#ifdef POLL
        /* L9: no bridge, so look by oneself. */
        :: live[i] && !stopping[i] && !push[i] && !owed[i] && rx[i] == 0 && !retry[i] -> look(i)
#endif
        :: live[i] && CAN_SAY(i) && rx[i] == EMPTY -> hear_empty(i)
        :: live[i] && CAN_SAY(i) && rx[i] == FOUND -> hear_found(i)
        :: live[i] && CAN_SAY(i) && busy[i] > hung[i] -> busy[i]--
        :: live[i] && CAN_SAY(i) && retry[i] -> retry[i] = false
        /* L6: what nobody holds has come back. */
        :: live[i] && CAN_SAY(i) && back[i] && !late[i] && unknown[i] == 0 ->
            back[i] = false;
            if :: stopping[i] -> skip :: else -> look_alone(i); by_wake = true fi
        :: f_error > 0 && live[i] && CAN_SAY(i) && rx[i] == ASKED -> f_error--; break_off(i)
        :: f_unknown > 0 && live[i] && CAN_SAY(i) && rx[i] != 0 ->
            f_unknown--;
            if
            :: rx[i] == ASKED -> late[i] = true
            :: rx[i] == EMPTY -> skip
            :: rx[i] == FOUND -> unknown[i]++
            fi;
#ifndef V13 /* taken for one that never was */
            back[i] = true;
#endif
            break_off(i)
        fi;
        if :: by_wake != 2 -> advance(i, by_wake) :: by_wake == 2 -> skip fi;
        by_wake = false;
        check(i) }
    /* The connection broke, as seen from here. */
    :: atomic { live[i] && push[i] && cut[i] ->
        push[i] = false;
        do :: nempty(down[i]) -> down[i]?kind, b, g :: empty(down[i]) -> break od }
    :: atomic { live[i] && push[i] && !cut[i] && seat[i] && seated[i] == instance[i] && empty(up[i]) && NEWS(i) ->
        levels = (SAYS_FREE(i) -> L_FREE : 0) + (rx[i] -> L_RECEIVING : 0) + (HELD(i) -> L_LEASES : 0) +
            (IDLE(i) -> L_IDLE : 0);
        rumour_free[i] = SAYS_FREE(i); rumour_barred[i] = !SAYS_FREE(i);
        if :: len(down[i]) == 0 -> recent[i] = false :: len(down[i]) > 0 -> skip fi;
        say(i, BEAT, lboot[i], lgen[i], levels) }
    :: atomic { f_hang > 0 && live[i] && busy[i] > hung[i] -> f_hang--; hung[i]++ }
    /* L12: nothing new, the debt handed back, handlers to their end, and what is left told. */
    :: atomic { f_stop > 0 && live[i] && push[i] && !stopping[i] && CAN_SAY(i) ->
        f_stop--; stopping[i] = true; retry[i] = false; say_more(i, true) }
    :: atomic { live[i] && stopping[i] && CAN_SAY(i) && rx[i] == 0 && busy[i] == 0 ->
        if
        :: push[i] -> say(i, BYE, 0, 0, (HELD(i) -> L_LEASES : 0))
        :: else -> skip
        fi;
        late[i] = false;
        die(i) }
    :: atomic { f_crash > 0 && live[i] &&
#ifdef SEATED /* only where the bridge can know of it */
        serving && seat[i] && seated[i] == instance[i] && !cut[i] &&
#endif
        true -> f_crash--; FAULT; die(i) }
    :: atomic { f_revive > 0 && !live[i] -> f_revive--; live[i] = true; instance[i]++; cut[i] = true
#ifdef V1
        ; look(i); advance(i, false)
#endif
        }
    od
}

/* ================================================ the rest of the world ========================================== */

/* P1, P3: published after the put is visible; at most one publish at a time; puts meanwhile set one bit. */
proctype Producer() {
end: do
    :: atomic { puts < M ->
        puts++;
        if
        :: puts > M - DELAYED -> delayed++; due_bit = true
        :: else ->
#ifdef V5   /* published before it is visible */
            put_bit = true; early++
#else
            visible++;
            if
            :: put_bit = true
            :: f_producer > 0 -> f_producer--; FAULT
            fi
#endif
        fi }
#ifdef V5
    :: atomic { early > 0 -> early--; visible++ }
#endif
    :: atomic { sending == 0 && put_bit ->
        sending = 1; sending_due = false;
#ifndef V16 /* the bit is cleared after the acknowledgement */
        put_bit = false
#endif
        }
    :: atomic { sending == 0 && due_bit -> sending = 1; sending_due = true; due_bit = false }
    :: atomic { sending == 2 ->
        sending = 0;
#ifdef V16
        if :: !sending_due -> put_bit = false :: else -> skip fi;
#endif
        sending_due = false }
    :: atomic { f_bus > 0 && sending == 1 -> f_bus--; FAULT; sending = 2 }
    od
}

proctype Store(byte i) {
end: do
    :: atomic { rx[i] == ASKED -> if :: visible > 0 -> visible--; rx[i] = FOUND :: else -> rx[i] = EMPTY fi }
    :: atomic { late[i] -> late[i] = false; if :: visible > 0 -> visible--; unknown[i]++ :: true -> skip fi }
    :: atomic { unknown[i] > 0 -> unknown[i]--; visible++; FAULT }
    :: atomic { dead[i] > 0 ->
        dead[i]--; visible++; FAULT;
        if :: end_waits[i] > 0 -> end_waits[i]-- :: else -> skip fi }
    :: atomic { i == 0 && delayed > 0 && due + due_bit + sending_due > 0 -> delayed--; visible++ }
    od
}

/* Frames that are lost, and connections that break. */
proctype Link(byte i) {
end: do
    :: atomic { f_up > 0 && nempty(up[i]) -> f_up--; FAULT; up[i]?kind, who, b, g, levels, covered }
    :: atomic { f_down > 0 && nempty(down[i]) -> f_down--; FAULT; down[i]?kind, b, g }
    :: atomic { f_cut > 0 && live[i] && !cut[i] ->
        f_cut--; FAULT; cut[i] = true;
        do :: nempty(up[i]) -> up[i]?kind, who, b, g, levels, covered :: empty(up[i]) -> break od;
        do :: nempty(down[i]) -> down[i]?kind, b, g :: empty(down[i]) -> break od }
    od
}

#if NL == 1
#define ANY_CAN_TAKE CAN_TAKE(0)
#elif NL == 2
#define ANY_CAN_TAKE (CAN_TAKE(0) || CAN_TAKE(1))
#else
#define ANY_CAN_TAKE (CAN_TAKE(0) || CAN_TAKE(1) || CAN_TAKE(2))
#endif

/* Looks at rest: the property, and the two nets below it. */
proctype Rest() {
    byte i;
end: do
    :: atomic { timeout ->
        if
        :: visible > 0 && ANY_CAN_TAKE ->
#ifdef SWEEP
            /* B9, I1: one sweep after the last fault is enough. */
            assert(!swept);
            swept = true;
            if
              :: !dirty -> mark(); hand_out(NOBODY)
            :: dirty && owner != NOBODY -> i = owner; disown(); hand_out(i); hand_out(NOBODY); i = 0
            :: else -> skip
            fi
#elif defined(DEADMAN)
            /* L10, I1: so is one look of each listener's own. */
            assert(!looked);
            looked = true;
            for (i : 0 .. NL - 1) {
                if :: CAN_TAKE(i) -> look_alone(i); advance(i, false) :: else -> skip fi
            };
            i = 0
#else
            assert(false)   /* a lost wake */
#endif
        :: else -> break
        fi }
    od
}

#ifdef EXACTLY  /* each as often as it may, wherever it can: fewer states, and no verdict for less faults */
#define CHOOSE(have, most) have = most
#else
#define CHOOSE(have, most) do :: have < most -> have++ :: break od
#endif

init {
    byte i;
    atomic {
        CHOOSE(f_producer, F_PRODUCER); CHOOSE(f_bus, F_BUS); CHOOSE(f_up, F_UP); CHOOSE(f_down, F_DOWN);
        CHOOSE(f_cut, F_CUT); CHOOSE(f_crash, F_CRASH); CHOOSE(f_revive, F_REVIVE); CHOOSE(f_stop, F_STOP);
        CHOOSE(f_bridge, F_BRIDGE); CHOOSE(f_unknown, F_UNKNOWN); CHOOSE(f_error, F_ERROR);
        CHOOSE(f_hang, F_HANG); CHOOSE(f_hasty, F_HASTY); CHOOSE(f_forget, F_FORGET);
        for (i : 0 .. NL - 1) {
            live[i] = true; instance[i] = 1; cut[i] = true;
#ifdef V1
            look(i); advance(i, false);
#endif
#ifdef FULL    /* the first listener begins with handlers that never end, and with so many leases of nobody */
            if
            :: i == 0 -> busy[i] = SLOTS; hung[i] = SLOTS; unknown[i] = FULL; back[i] = FULL
            :: else -> skip
            fi;
#endif
            run Place(i); run Listener(i); run Store(i); run Link(i)
        };
        i = 0;
        run Bridge(); run Producer(); run Rest()
    }
}
