-- The Gentle-Aggression option (docs/wire) for Wireshark and tshark, 3.4 or later:
--
--     tshark -X lua_script:docs/wireshark/gentle.lua -r capture.pcapng -Y gentle
--     cp docs/wireshark/gentle.lua ~/.local/lib/wireshark/plugins/
--
-- Every flag has a field, the encoded range is worked out from SEG.SEQ, and a line about it stands in the
-- column Info. The ExID is a preference of the protocol "gentle". Whether a SYN agreed is not followed:
-- what carries the ExID is shown.

local gentle = Proto("gentle", "Gentle Aggression (Corrective, Proactive)")

gentle.prefs.exid = Pref.uint("ExID", 0xDC60, "16-bit experiment identifier of the option (RFC 6994)")

local VERSIONS = { [0] = "F1 (laboratory)", [1] = "F2", [2] = "reserved", [3] = "reserved" }
local ENCODINGS = { [0] = "none", [1] = "XOR", [2] = "interleaved XOR", [3] = "Reed-Solomon" }
local STOP = 0xffffff
local PARITIES_MAX = 8

local f = gentle.fields
f.kind = ProtoField.uint8("gentle.kind", "Kind")
f.length = ProtoField.uint8("gentle.length", "Length")
f.exid = ProtoField.uint16("gentle.exid", "ExID", base.HEX)
f.form = ProtoField.string("gentle.form", "Form")

f.capability = ProtoField.uint8("gentle.capability", "Capability", base.HEX)
f.answer = ProtoField.bool("gentle.capability.answer", "R: answer", 8, nil, 0x80)
f.proactive = ProtoField.bool("gentle.capability.proactive", "P: Proactive", 8, nil, 0x40)
f.version = ProtoField.uint8("gentle.capability.version", "VER", base.DEC, VERSIONS, 0x30)
f.encoding = ProtoField.uint8("gentle.capability.encoding", "ENC type", base.DEC, ENCODINGS, 0x0f)

f.flags = ProtoField.uint8("gentle.flags", "Flags", base.HEX)
local FLAGS = {
  { 0x80, "R_ACK", "r_ack", "window reduced for a repair" },
  { 0x40, "R_SUCC", "r_succ", "a repair succeeded" },
  { 0x20, "R_FAIL", "r_fail", "a repair failed" },
  { 0x10, "ENC", "enc", "the payload is a parity" },
  { 0x08, "S_PAR", "s_par", "episode parity of R_SUCC" },
  { 0x04, "A_PAR", "a_par", "episode parity of R_ACK" },
  { 0x02, "COPY", "copy", "a Proactive copy" },
  { 0x01, "FIN_END", "fin_end", "a FIN follows the encoded range" },
}
for _, flag in ipairs(FLAGS) do
  f[flag[3]] = ProtoField.bool("gentle.flags." .. flag[3], flag[2] .. ": " .. flag[4], 8, nil, flag[1])
end

f.lost_len = ProtoField.uint24("gentle.lost_len", "lost_len")
f.stop = ProtoField.bool("gentle.stop", "STOP: send no more parity")
f.lost_start = ProtoField.uint32("gentle.lost.start", "Lost from")
f.lost_end = ProtoField.uint32("gentle.lost.end", "Lost up to")

f.enc_len = ProtoField.uint24("gentle.enc_len", "enc_len")
f.start_off = ProtoField.uint24("gentle.start_off", "start_off")
f.crc32c = ProtoField.uint32("gentle.crc32c", "crc32c", base.HEX)
f.parity = ProtoField.uint8("gentle.parity", "Parity", base.DEC, nil, 0xf0)
f.parities = ProtoField.uint8("gentle.parities", "of parities", base.DEC, nil, 0x0f)
f.range_start = ProtoField.uint32("gentle.range.start", "Encoded from")
f.range_end = ProtoField.uint32("gentle.range.end", "Encoded up to")
f.block = ProtoField.uint32("gentle.block", "Block size")
f.blocks = ProtoField.uint32("gentle.blocks", "Blocks")

local malformed = ProtoExpert.new("gentle.malformed", "Malformed: drop the segment, never its payload as data",
  expert.group.MALFORMED, expert.severity.ERROR)
local ignored = ProtoExpert.new("gentle.ignored", "No form of this option: ignored",
  expert.group.PROTOCOL, expert.severity.WARN)
gentle.experts = { malformed, ignored }

local tcp_options = Field.new("tcp.options")
local tcp_syn = Field.new("tcp.flags.syn")
local tcp_seq = Field.new("tcp.seq")
local tcp_ack = Field.new("tcp.ack")
local tcp_len = Field.new("tcp.len")

-- Numbers of the sequence space; Lua's may be floating point.
local function wrap(number)
  return number % 4294967296
end

local function has(flags, mask)
  return math.floor(flags / mask) % 2 == 1
end

local function flag_names(flags)
  local names = {}
  for _, flag in ipairs(FLAGS) do
    if has(flags, flag[1]) then names[#names + 1] = flag[2] end
  end
  return #names > 0 and table.concat(names, "|") or "no flags"
end

local function u24(range)
  return range(0, 1):uint() * 65536 + range(1, 2):uint()
end

-- A SYN or SYN-ACK: one byte. Returns a summary.
local function capability(value, tree)
  local byte = value(0, 1)
  local item = tree:add(f.capability, byte)
  for _, field in ipairs({ f.answer, f.proactive, f.version, f.encoding }) do item:add(field, byte) end
  local encoding = byte:uint() % 16
  local offers = {}
  if encoding > 0 then offers[#offers + 1] = ENCODINGS[encoding] or ("ENC type " .. encoding) end
  if has(byte:uint(), 0x40) then offers[#offers + 1] = "Proactive" end
  local what = has(byte:uint(), 0x80) and "agrees" or "offers"
  return what .. " " .. (#offers > 0 and table.concat(offers, " and ") or "nothing")
end

-- Where the encoded range lies and how it is cut.
local function encoded_range(tree, value, seq, start_off, enc_len)
  local start = wrap(seq + start_off)
  local stop = wrap(start + enc_len)
  tree:add(f.range_start, value, start):set_generated()
  tree:add(f.range_end, value, stop):set_generated()
  local payload = tcp_len()
  if payload and payload.value > 0 and payload.value < enc_len then
    tree:add(f.block, payload.value):set_generated()
    tree:add(f.blocks, math.ceil(enc_len / payload.value)):set_generated()
  end
  return string.format("[%u,%u)", start, stop)
end

-- R_FAIL: what the receiver misses, or STOP.
local function failure(value, tree)
  local lost = u24(value(1, 3))
  tree:add(f.lost_len, value(1, 3))
  if lost == STOP then
    tree:add(f.stop, value(1, 3), true)
    return "STOP"
  end
  local ack = tcp_ack()
  if not ack then return "" end
  local from, to = ack.value, wrap(ack.value + lost)
  tree:add(f.lost_start, value(1, 3), from):set_generated()
  tree:add(f.lost_end, value(1, 3), to):set_generated()
  return string.format("[%u,%u)", from, to)
end

-- The forms of a segment after the handshake: their name and what else there is to say; nil if it has none.
local function body(value, tree, flags)
  local enc, fail, len = has(flags, 0x10), has(flags, 0x20), value:len()
  local seq = tcp_seq() and tcp_seq().value or 0
  if len == 1 and not enc and not fail then return "short", "" end
  if len == 4 and fail and not enc then return "fail", failure(value, tree) end
  if not enc or fail or (len ~= 4 and len ~= 11 and len ~= 12) then return nil end
  local enc_len = u24(value(1, 3))
  if enc_len == 0 then return nil end
  tree:add(f.enc_len, value(1, 3))
  if len == 4 then return "enc-F1", encoded_range(tree, value(1, 3), seq, 0, enc_len) end
  tree:add(f.start_off, value(4, 3))
  tree:add(f.crc32c, value(7, 4))
  local range = encoded_range(tree, value(1, 6), seq, u24(value(4, 3)), enc_len)
  if len == 11 then return "enc-F2", range end
  local of = value(11, 1):uint()
  local parity, parities = math.floor(of / 16), of % 16
  if parity >= parities or parities > PARITIES_MAX then return nil end
  tree:add(f.parity, value(11, 1))
  tree:add(f.parities, value(11, 1))
  return "enc-RS", string.format("%s parity %d of %d", range, parity, parities)
end

-- One option with our ExID: `option` from its kind on.
local function show(option, pinfo, tree)
  local top = tree:add(gentle, option)
  top:add(f.kind, option(0, 1))
  top:add(f.length, option(1, 1))
  top:add(f.exid, option(2, 2))
  local len = option:len() - 4
  local value = len > 0 and option(4, len) or nil
  local summary
  if tcp_syn() and tcp_syn().value then
    if len ~= 1 then
      top:add_proto_expert_info(ignored)
      return
    end
    local byte = value(0, 1):uint()
    if byte > 0x30 and byte < 0x3f then
      top:add(f.form, value, "window"):set_generated()
      summary = string.format("window %u", 2 ^ (16 + byte - 0x30))
    else
      top:add(f.form, value, "capability"):set_generated()
      summary = capability(value, top)
    end
  else
    local flags = value and value(0, 1):uint() or 0
    local form, more
    if value then
      local item = top:add(f.flags, value(0, 1))
      for _, flag in ipairs(FLAGS) do item:add(f[flag[3]], value(0, 1)) end
      form, more = body(value, top, flags)
    end
    if not form then
      local harmless = value and not has(flags, 0x10) and (len == 1 or len == 4 or len == 11)
      top:add_proto_expert_info(harmless and ignored or malformed)
      pinfo.cols.info:append(harmless and " [GA ignored]" or " [GA malformed]")
      return
    end
    top:add(f.form, value, form):set_generated()
    summary = flag_names(flags) .. (more ~= "" and " " .. more or "")
  end
  top:append_text(": " .. summary)
  pinfo.cols.info:append(" [GA " .. summary .. "]")
end

function gentle.dissector(_, pinfo, tree)
  for _, field in ipairs({ tcp_options() }) do
    local options = field.range
    local at, len = 0, options:len()
    while at < len do
      local kind = options(at, 1):uint()
      if kind == 0 then break end
      local size = 1
      if kind ~= 1 then
        size = at + 1 < len and options(at + 1, 1):uint() or 0
        if size < 2 or at + size > len then break end
      end
      if (kind == 253 or kind == 254) and size >= 4 and options(at + 2, 2):uint() == gentle.prefs.exid then
        show(options(at, size), pinfo, tree)
      end
      at = at + size
    end
  end
end

register_postdissector(gentle)
