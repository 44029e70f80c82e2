"""The scripts of the store on Redis: each is one call and atomic.

A queue is a stream with one consumer group. Delivered entries are in the group's pending list, with their counts; a
sorted set has the time when each becomes visible, which streams do not provide. Delayed entries are added to the
pending list by ``XCLAIM ... FORCE``, and the group's cursor skips them.

``KEYS``: the stream; when each delivered entry becomes visible; the newest receipts; when entries expire; bodies that
replace those in the stream; further state of the queue; keys of `put_once`; when each of these keys expires. Times are
the server's, in microseconds. If memory is full, Redis rejects a script at its first command that may need more, so
scripts that receive or delete begin with a command that does not.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "queuebell"
PURGED: Final = 1000
PASSED: Final = 1000
"""Maximum of delayed entries that a receive skips; if there are more, its answer proves nothing."""
FORGOTTEN_PER_PUT: Final = 4
"""Expired keys that one put under a key checks."""
LOOKED: Final = 32
"""Maximum of returned entries that are read to separate leased from delayed ones, and of delayed entries that are
skipped to find the one visible longest."""
READ: Final = 4
"""Entries of a queue that a round reads at most."""
FOREIGN_LEASE_S: Final = 30
"""Lease of a message that another program read with the group, without this store."""

_RUN: Final = """
-- Which run of which server this is; empty for a user who may not ask.
local function server()
    local told = redis.pcall('INFO', 'server')
    return type(told) == 'string' and string.match(told, 'run_id:(%w+)') or ''
end
"""

_COMMON: Final = f"""
local stream, due, receipts, expires, bodies, state = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local once, windows = KEYS[7], KEYS[8]
local GROUP, LEASED, WAITING = '{GROUP}', 'leased', 'waiting'
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local function text(number) return string.format('%.0f', number) end

local function missing() return redis.call('EXISTS', stream) == 0 end

local function named(pairs_in_a_row)
    local found = {{}}
    for i = 1, #pairs_in_a_row, 2 do found[pairs_in_a_row[i]] = pairs_in_a_row[i + 1] end
    return found
end

local function forget(id)
    redis.call('XACK', stream, GROUP, id)
    local gone = redis.call('XDEL', stream, id)
    redis.call('ZREM', due, id)
    redis.call('ZREM', expires, id)
    redis.call('HDEL', receipts, id)
    redis.call('HDEL', bodies, id)
    return gone == 1
end

-- Remove expired entries; true if there were so many that another call is needed.
local function purge()
    local dead = redis.call('ZRANGEBYSCORE', expires, '-inf', text(now), 'LIMIT', 0, {PURGED})
    for _, id in ipairs(dead) do forget(id) end
    return #dead == {PURGED}
end

-- The last entry delivered to the group, and the number of pending ones; creates a missing group.
local function group()
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        local about = named(each)
        if about['name'] == GROUP then return about['last-delivered-id'], about['pending'] end
    end
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0')
    local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    if newest and redis.call('ZCARD', due) > 0 then
        redis.call('HSET', state, 'ahead', newest[1])  -- recreated: it must skip entries delivered before
        for _, id in ipairs(redis.call('ZRANGE', due, 0, -1)) do
            redis.call('XCLAIM', stream, GROUP, LEASED, 0, id, 'FORCE', 'JUSTID', 'RETRYCOUNT', 1)
        end
    end
    return '0-0', 0
end

local function before(one, other)
    local ms, place = string.match(one, '(%d+)-(%d+)')
    local other_ms, other_place = string.match(other, '(%d+)-(%d+)')
    if ms ~= other_ms then return tonumber(ms) < tonumber(other_ms) end
    return tonumber(place) < tonumber(other_place)
end

-- Delay an entry that was never delivered, as a consumer named after its state.
local function delay_undelivered(id, at, as)
    local last = group()
    redis.call('XCLAIM', stream, GROUP, as, 0, id, 'FORCE', 'JUSTID', 'RETRYCOUNT', 0)
    redis.call('ZADD', due, text(at), id)
    local first = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)[1]
    if first and first[1] == id then
        local about = named(redis.call('XINFO', 'STREAM', stream))
        if about['entries-added'] and about['last-generated-id'] == id then
            redis.call('XGROUP', 'SETID', stream, GROUP, id, 'ENTRIESREAD', about['entries-added'])  -- keeps the lag
        else
            redis.call('XGROUP', 'SETID', stream, GROUP, id)
        end
        return
    end
    local ahead = redis.call('HGET', state, 'ahead')
    if not ahead or before(ahead, id) then redis.call('HSET', state, 'ahead', id) end
end

-- Visible and invisible messages; entries never delivered are those of the stream without a time.
local function counts()
    local last = group()
    local held, fresh = redis.call('ZCARD', due), 0
    local first = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)[1]
    if first then
        fresh = math.max(0, redis.call('XLEN', stream) - held)
        if fresh == 0 then
            -- Deleted entries may still have a time, which must not hide existing ones.
            for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', {PASSED})) do
                if not redis.call('ZSCORE', due, entry[1]) then
                    fresh = 1
                    break
                end
            end
        end
    end
    local back = redis.call('ZCOUNT', due, '-inf', text(now))
    return fresh + back, held - back
end

-- How many of the invisible messages are leased and delayed; -1 if that takes too long to find out, because entries
-- that became visible again are still assigned to their state.
local function leased_and_delayed(invisible)
    if invisible == 0 then return 0, 0 end
    local back = redis.call('ZRANGEBYSCORE', due, '-inf', text(now), 'LIMIT', 0, {LOOKED} + 1)
    if #back > {LOOKED} then return -1, -1 end
    local waits = 0
    for _, each in ipairs(redis.call('XPENDING', stream, GROUP)[4] or {{}}) do
        if each[1] == WAITING then waits = tonumber(each[2]) end
    end
    for _, id in ipairs(back) do
        local held = redis.call('XPENDING', stream, GROUP, id, id, 1)[1]
        if held and held[2] == WAITING then waits = waits - 1 end
    end
    waits = math.max(0, math.min(waits, invisible))
    return invisible - waits, waits
end

-- For how many milliseconds the oldest message has been visible; -1 if none is, or it is behind many delayed ones.
local function oldest()
    local back = redis.call('ZRANGEBYSCORE', due, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, 1)
    local since, from = tonumber(back[2]), (group())
    for _ = 1, {LOOKED} do
        local entry = redis.call('XRANGE', stream, '(' .. from, '+', 'COUNT', 1)[1]
        local at = entry and tonumber(string.match(entry[1], '%d+')) * 1000
        if not at or (since and at >= since) then break end
        if not redis.call('ZSCORE', due, entry[1]) then
            since = at
            break
        end
        from = entry[1]
    end
    return since and math.max(0, math.floor((now - since) / 1000)) or -1
end

-- Visible entries, longest first, up to a limit; the cursor's way to the new ones among them, and their number; and
-- whether there may be more beyond the entries read.
local function candidates(last, limit)
    local back = redis.call('ZRANGEBYSCORE', due, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, limit)
    local way, fresh, from, passed, ended = {{}}, {{}}, last, 0, false
    repeat
        local page = redis.call('XRANGE', stream, '(' .. from, '+', 'COUNT', limit)
        for _, entry in ipairs(page) do
            if #fresh == limit then break end
            from = entry[1]
            if redis.call('ZSCORE', due, from) then
                passed = passed + 1
                way[#way + 1] = {{id = from}}
            else
                local since = tonumber(string.match(from, '%d+')) * 1000
                local one = {{id = from, fields = entry[2], since = since}}
                fresh[#fresh + 1] = one
                way[#way + 1] = one
            end
        end
        ended = #page < limit
    until ended or #fresh == limit or passed >= {PASSED}
    local found, i, j = {{}}, 1, 1
    while #found < limit and (i < #back or j <= #fresh) do
        if j > #fresh or (i < #back and tonumber(back[i + 1]) <= fresh[j].since) then
            found[#found + 1] = {{id = back[i]}}
            i = i + 2
        else
            found[#found + 1] = fresh[j]
            j = j + 1
        end
    end
    return found, way, j - 1, not ended and #fresh < limit
end

local function told(id, receipt, count, fields)
    return {{id, receipt, count, redis.call('ZSCORE', expires, id), redis.call('HGET', bodies, id), fields}}
end
"""

# A replica would answer reads from old data. A write that changes nothing makes it raise READONLY.
_AT_MASTER = _COMMON + "redis.call('HDEL', receipts, '')\n"

_PUTTING = (
    _COMMON
    + """
local function make()
    if not missing() then return end
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    redis.call('UNLINK', due, receipts, expires, bodies, state, once, windows)
end

local function put(body, receipt, delay, ttl, headers, ...)
    local id
    if headers == '' then
        id = redis.call('XADD', stream, '*', 'body', body, 'receipt', receipt, ...)
    else
        id = redis.call('XADD', stream, '*', 'body', body, 'receipt', receipt, 'headers', headers, ...)
    end
    if ttl > 0 then redis.call('ZADD', expires, text(now + ttl * 1000000), id) end
    if delay > 0 then delay_undelivered(id, now + delay * 1000, WAITING) end
    return id
end

-- A write that changes nothing makes a replica raise READONLY.
local function at_master() redis.call('HDEL', receipts, '') end
"""
)
_PUT_ALL = """
local ids = {}
for i = 2, #ARGV, 5 do
    ids[#ids + 1] = put(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), ARGV[i + 4])
end
return {'ok', ids}
"""
_ONLY_EXISTING = """
if missing() then
    at_master()
    return {'missing'}
end
"""

PUT: Final = _PUTTING + "make()" + _PUT_ALL
PUT_EXISTING: Final = _PUTTING + _ONLY_EXISTING + _PUT_ALL

# A key is valid until it expires, and while its message exists. Each put checks some expired keys, so that they are
# removed faster than new ones come; after its XADD, which fails if memory is full.
_PUT_ONE = f"""
local key, digest, window = ARGV[6], ARGV[7], tonumber(ARGV[8]) * 1000

local function stands(id)
    local ends = redis.call('ZSCORE', expires, id)
    return redis.call('XRANGE', stream, id, id)[1] and not (ends and tonumber(ends) <= now)
end

local known = redis.call('HGET', once, key)
if known and missing() then known = nil end
if known then
    local id, was = string.match(known, '^(%S+) (%x+)$')
    local over = redis.call('ZSCORE', windows, key)
    if not id or stands(id) or (over and tonumber(over) > now) then
        at_master()
        return {{'ok', '', was == digest and 1 or 0}}
    end
end
@MAKE
local id = put(ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[9], 'key', key)
redis.call('HSET', once, key, id .. ' ' .. digest)
redis.call('ZADD', windows, text(now + window), key)
for _, other in ipairs(redis.call('ZRANGEBYSCORE', windows, '-inf', text(now), 'LIMIT', 0, {FORGOTTEN_PER_PUT})) do
    local held = redis.call('HGET', once, other)
    if held and stands(string.match(held, '^%S+')) then
        redis.call('ZADD', windows, text(now + window), other)
    else
        redis.call('HDEL', once, other)
        redis.call('ZREM', windows, other)
    end
end
return {{'ok', id, 1}}
"""
PUT_ONCE: Final = _PUTTING + _PUT_ONE.replace("@MAKE", "make()")
PUT_ONCE_EXISTING: Final = _PUTTING + _PUT_ONE.replace("@MAKE", _ONLY_EXISTING)

RECEIVE: Final = (
    _AT_MASTER
    + _RUN
    + f"""
if missing() then return {{'missing'}} end
if purge() then return {{'again'}} end
if redis.call('HEXISTS', state, 'paused') == 1 then
    local visible, invisible = counts()
    local leased, delayed = leased_and_delayed(invisible)
    return {{'ok', {{}}, 0, visible + invisible, -1, 0, 0, leased, delayed, -1, server()}}
end
local limit, lease, nonce = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[1]
local last, pending = group()

-- Entries that another program read with this group get a time too.
if pending > redis.call('ZCARD', due) then
    local from = '-'
    repeat
        local page = redis.call('XPENDING', stream, GROUP, from, '+', 1000)
        for _, each in ipairs(page) do
            from = '(' .. each[1]
            redis.call('ZADD', due, 'NX', text(now + {FOREIGN_LEASE_S * 1_000_000} - each[3] * 1000), each[1])
        end
    until #page < 1000
end

local ahead = redis.call('HGET', state, 'ahead')
if ahead and not before(last, ahead) then
    redis.call('HDEL', state, 'ahead')
    ahead = false
end
local picked, blocked = {{}}, 0
if not ahead and #redis.call('ZRANGEBYSCORE', due, '-inf', text(now), 'LIMIT', 0, 1) == 0 then
    local read = redis.call('XREADGROUP', 'GROUP', GROUP, LEASED, 'COUNT', limit, 'STREAMS', stream, '>')
    for _, entry in ipairs(read and read[1][2] or {{}}) do
        picked[#picked + 1] = {{id = entry[1], fields = entry[2]}}
    end
else
    local found, way, fresh, cut = candidates(last, limit)
    local run = 0
    local function read()
        if run == 0 then return end
        redis.call('XREADGROUP', 'GROUP', GROUP, LEASED, 'COUNT', run, 'STREAMS', stream, '>')
        run = 0
    end
    for _, each in ipairs(way) do
        if each.fields then
            if fresh == 0 then break end
            run, fresh = run + 1, fresh - 1
        else
            read()
            redis.call('XGROUP', 'SETID', stream, GROUP, each.id)
        end
    end
    read()
    for _, each in ipairs(found) do
        if not each.fields then
            local claimed = redis.call('XCLAIM', stream, GROUP, LEASED, 0, each.id, 'FORCE')[1]
            each.fields = claimed and claimed[2]
            each.again = true
        end
        if each.fields then
            picked[#picked + 1] = each
        else
            forget(each.id)  -- trimmed or deleted by another program
            blocked = 1
        end
    end
    if cut and #picked < limit then blocked = 1 end
end

local answer = {{}}
for i, each in ipairs(picked) do
    local receipt, count = nonce .. string.format('%02x', i), 1
    if each.again then count = redis.call('XPENDING', stream, GROUP, each.id, each.id, 1)[1][4] end
    redis.call('ZADD', due, text(now + lease * 1000), each.id)
    redis.call('HSET', receipts, each.id, receipt)
    answer[i] = told(each.id, receipt, count, each.fields)
end

local visible, invisible = counts()
local leased, delayed = leased_and_delayed(invisible)
-- When the next delayed message becomes visible: 0 if there is none, -1 if unknown. After 100 leases it is the end of
-- the last of them, which may be too early, never too late.
local later, after = -1, delayed == 0 and 0 or -1
if #picked < limit then
    local coming = redis.call('ZRANGEBYSCORE', due, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
    for i = 1, #coming, 2 do
        local ends, at = redis.call('ZSCORE', expires, coming[i]), tonumber(coming[i + 1])
        later = math.ceil((at - now) / 1000)
        if not ends or tonumber(ends) > at then break end
        if i + 1 == #coming and #coming < 200 then later = -1 end
    end
    for i = 1, delayed ~= 0 and #coming or 0, 2 do
        local held = redis.call('XPENDING', stream, GROUP, coming[i], coming[i], 1)[1]
        after = math.max(1, math.ceil((tonumber(coming[i + 1]) - now) / 1000))
        if held and held[2] == WAITING then break end
    end
end
return {{'ok', answer, visible, invisible, later, after, blocked, leased, delayed, visible > 0 and oldest() or -1,
    #picked == 0 and server() or ''}}
"""
)

SETTLE: Final = (
    _AT_MASTER
    + """
if missing() then return {'missing'} end
if purge() then return {'again'} end
local nonce, place, made = ARGV[1], 5, 0
local outcomes = {}

local function refused(id, receipt)
    local newest = redis.call('HGET', receipts, id)
    if not newest then
        local entry = redis.call('XRANGE', stream, id, id)[1]
        if not entry then return 'missing' end
        newest = named(entry[2])['receipt']
    end
    return newest ~= receipt and 'mismatch' or nil
end

-- Change an entry's time and state, and with uncounted undo the count of its newest delivery; false if it is gone.
local function move(id, at, as, uncounted)
    if not redis.call('XRANGE', stream, id, id)[1] then
        forget(id)
        return false
    end
    if redis.call('ZSCORE', due, id) then
        local held = uncounted and redis.call('XPENDING', stream, GROUP, id, id, 1)[1]
        if held then
            redis.call('XCLAIM', stream, GROUP, as, 0, id, 'FORCE', 'JUSTID', 'RETRYCOUNT', math.max(0, held[4] - 1))
        else
            redis.call('XCLAIM', stream, GROUP, as, 0, id, 'FORCE', 'JUSTID')
        end
        redis.call('ZADD', due, text(at), id)
    else
        delay_undelivered(id, at, as)
    end
    return true
end

local function new_receipt(id)
    made = made + 1
    local receipt = nonce .. string.format('%02x', made)
    redis.call('HSET', receipts, id, receipt)
    return receipt
end

-- delete
for _ = 1, tonumber(ARGV[2]) do
    local id = ARGV[place]
    local why = refused(id, ARGV[place + 1])
    if not why and not forget(id) then why = 'missing' end
    outcomes[#outcomes + 1] = why or 'ok'
    place = place + 2
end
-- release
for _ = 1, tonumber(ARGV[3]) do
    local id = ARGV[place]
    local why = refused(id, ARGV[place + 1])
    local at, uncounted = now + tonumber(ARGV[place + 2]) * 1000, ARGV[place + 3] == '1'
    if not why and not move(id, at, WAITING, uncounted) then why = 'missing' end
    outcomes[#outcomes + 1] = why or 'ok:' .. new_receipt(id)
    place = place + 4
end
-- extend
for _ = 1, tonumber(ARGV[4]) do
    local id = ARGV[place]
    local why = refused(id, ARGV[place + 1])
    if not why and not move(id, now + tonumber(ARGV[place + 2]) * 1000, LEASED) then why = 'missing' end
    if not why and ARGV[place + 3] == '1' then redis.call('HSET', bodies, id, ARGV[place + 4]) end
    outcomes[#outcomes + 1] = why or 'ok:' .. new_receipt(id)
    place = place + 5
end
return {'ok', outcomes}
"""
)

PEEK: Final = (
    _COMMON
    + """
if missing() then return {'missing'} end
if purge() then return {'again'} end
local last = group()
local answer = {}
for _, each in ipairs((candidates(last, tonumber(ARGV[1])))) do
    local count = 0
    if not each.fields then
        local entry = redis.call('XRANGE', stream, each.id, each.id)[1]
        local held = redis.call('XPENDING', stream, GROUP, each.id, each.id, 1)[1]
        each.fields, count = entry and entry[2], held and held[4] or 0
    end
    if each.fields then answer[#answer + 1] = told(each.id, '', count, each.fields) end
end
return {'ok', answer}
"""
)

DEPTH: Final = (
    _COMMON
    + """
if missing() then return {'missing'} end
if purge() then return {'again'} end
local visible, invisible = counts()
if redis.call('HEXISTS', state, 'paused') == 1 then visible, invisible = 0, visible + invisible end
return {'ok', visible, invisible}
"""
)

COUNTS: Final = (
    _COMMON
    + """
if missing() then return {'missing'} end
if purge() then return {'again'} end
local visible, invisible = counts()
local leased, delayed = leased_and_delayed(invisible)
if redis.call('HEXISTS', state, 'paused') == 1 then visible, invisible = 0, visible + invisible end
return {'ok', visible, invisible, leased, delayed, visible > 0 and oldest() or -1}
"""
)

OLDEST: Final = (
    _COMMON
    + """
if missing() then return {'missing'} end
if redis.call('HEXISTS', state, 'paused') == 1 then return {'ok', -1} end
local since
local function alive(id)
    local ends = redis.call('ZSCORE', expires, id)
    return not (ends and tonumber(ends) <= now)
end
local back = redis.call('ZRANGEBYSCORE', due, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, 100)
for i = 1, #back, 2 do
    if alive(back[i]) and redis.call('XRANGE', stream, back[i], back[i])[1] then
        since = tonumber(back[i + 1])
        break
    end
end
"""
    + f"""
local from, passed = (group()), 0
while from and passed < {PASSED} do
    local page = redis.call('XRANGE', stream, '(' .. from, '+', 'COUNT', 100)
    from = #page == 100 and page[100][1] or nil
    for _, entry in ipairs(page) do
        passed = passed + 1
        if not redis.call('ZSCORE', due, entry[1]) and alive(entry[1]) then
            local at = tonumber(string.match(entry[1], '%d+')) * 1000
            since, from = math.min(since or at, at), nil
            break
        end
    end
end
if not since then return {{'ok', -1}} end
return {{'ok', math.max(0, math.floor((now - since) / 1000))}}
"""
)

# KEYS are four of each queue: its stream, when entries become visible, when they expire, its state. It says that one
# may be visible where it would have to skip some expired or delayed ones, as it would copy each with its body, and
# where another program has read entries with the group, which have no time yet. A replica may be behind: it refuses.
VISIBLE: Final = (
    _RUN
    + f"""
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

redis.call('HDEL', KEYS[4], '')

local function visible(stream, due, expires, state)
    if redis.call('EXISTS', stream) == 0 or redis.call('HEXISTS', state, 'paused') == 1 then return false end
    local function alive(id)
        local ends = redis.call('ZSCORE', expires, id)
        return not (ends and tonumber(ends) <= now)
    end
    local back = redis.call('ZRANGEBYSCORE', due, '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
    for _, id in ipairs(back) do
        if alive(id) then return true end
    end
    if #back == 100 then return true end
    local from = '0-0'
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        if each[2] == '{GROUP}' then
            for i = 1, #each, 2 do
                if each[i] == 'last-delivered-id' then from = each[i + 1] end
                if each[i] == 'pending' and each[i + 1] > redis.call('ZCARD', due) then return true end
            end
        end
    end
    for _ = 1, {READ} do
        local entry = redis.call('XRANGE', stream, '(' .. from, '+', 'COUNT', 1)[1]
        if not entry then return false end
        if not redis.call('ZSCORE', due, entry[1]) and alive(entry[1]) then return true end
        from = entry[1]
    end
    return true
end

local found = {{'ok', server()}}
for i = 1, #KEYS, 4 do
    if visible(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]) then found[#found + 1] = (i + 3) / 4 end
end
return found
"""
)

EXISTS: Final = _COMMON + "return {'ok', missing() and 0 or 1}\n"

# The stream's last id stays, so that no id repeats even if the clock goes back.
CLEAR: Final = (
    _AT_MASTER
    + """
if missing() then return {'missing'} end
local last = named(redis.call('XINFO', 'STREAM', stream))['last-generated-id']
redis.call('UNLINK', stream, due, receipts, expires, bodies, once, windows)
redis.call('HDEL', state, 'ahead')
redis.call('XGROUP', 'CREATE', stream, GROUP, '$', 'MKSTREAM')
if last ~= '0-0' then
    redis.call('XSETID', stream, last)
    redis.call('XGROUP', 'SETID', stream, GROUP, last)
end
return {'ok'}
"""
)

PAUSE: Final = (
    _AT_MASTER
    + """
if missing() then return {'missing'} end
if ARGV[1] == '1' then redis.call('HSET', state, 'paused', '1') else redis.call('HDEL', state, 'paused') end
return {'ok'}
"""
)

CREATE: Final = (
    _AT_MASTER
    + """
local made = missing()
if made then
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    redis.call('UNLINK', due, receipts, expires, bodies, state, once, windows)
end
if ARGV[1] == '1' then redis.call('HSET', state, 'metadata', ARGV[2]) end
return {'ok', made and 1 or 0}
"""
)

DELETE: Final = (
    _AT_MASTER
    + """
redis.call('UNLINK', stream, due, receipts, expires, bodies, state, once, windows)
return {'ok'}
"""
)
