// The opcodes of Python's pickles: those that data needs, and what the others would do.
#pragma once

#include <cstdint>

namespace penstock::pickle {

// What data needs of Python's opcodes.
enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDuplicate = '2',
  kIntegerText = 'I',  // Python 2 has it in protocol 2 too, for what takes more than 32 bits
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNoneValue = 'N',
  kBinPersistentId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kObject = 'o',  // an instance of a class of Python 2's old kind
  kGlobalName = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTupleOfMark = 't',
  kSetItems = 'u',
  kBinFloat = 'G',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProtocol = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSetOfMark = 0x91,
  kNewObjectWithKeywords = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

// What the other opcodes of Python would do; nullptr for a byte that is none.
inline const char* describe_unneeded(std::uint8_t opcode) {
  switch (opcode) {
    case 'L':
    case 'F':
    case 'S':
    case 'V':
    case 'g':
    case 'p':
    case 'd':
    case 'l':
    case 'P':
      return "an opcode of protocol 0 or 1";
    case 'i':
      return "an opcode that makes an instance";
    case 0x82:
    case 0x83:
    case 0x84:
      return "an opcode of the extension registry";
    case 0x97:
    case 0x98:
      return "an opcode for buffers outside of the pickle";
    default:
      return nullptr;
  }
}

}  // namespace penstock::pickle
