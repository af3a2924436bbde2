# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""The native codec: the standard form of an HTTP request's head, of HTTP/2's blocks of fields, of a JSON request, of its answer,
of gRPC's ModelInfer, and of the frames of a batch.

Every function returns None for whatever is not in the standard form, and for whatever is wrong: then the Python code, which is
the specification, reads or writes it, and words the refusal. What is returned equals what that code returns, to the last byte.
No function keeps anything between calls, and none calls into the server but for the constructors that it is handed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset
cimport numpy as cnp

cnp.import_array()

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from "<charconv>" namespace "std" nogil:
    cdef cppclass from_chars_result:
        const char* ptr
    cdef cppclass to_chars_result:
        char* ptr
    cdef enum class chars_format:
        fixed
        scientific
    from_chars_result from_chars(const char* first, const char* last, double& value)
    to_chars_result to_chars(char* first, char* last, double value, chars_format form)
    to_chars_result to_chars(char* first, char* last, int64_t value)
    to_chars_result to_chars(char* first, char* last, uint64_t value)

cdef extern from *:
    """
    #include <charconv>
    #include <system_error>
    #ifndef TPY_CODEC_SOURCE
    #define TPY_CODEC_SOURCE ""
    #endif
    static inline bool tpy_is_fine(std::from_chars_result const& result) { return result.ec == std::errc(); }
    """
    bint tpy_is_fine(from_chars_result result) nogil
    const char* TPY_CODEC_SOURCE

SOURCE = TPY_CODEC_SOURCE.decode()
"""The digest of the source that this was built from (`build.source_hash`)."""

# Numbers of data types in a model configuration.
cdef enum:
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14

cdef enum:
    RANK_MAX = 8
    DEPTH_MAX = 16
    OBJECTS_MAX = 64  # inputs or outputs of one request
    DIGITS_MAX = 19  # as many always fit into 64 bits
    DOUBLE_CHARACTERS_MAX = 32
    INTEGER_CHARACTERS_MAX = 24
    TEXT_BYTES_MAX = 65_536  # one string that is written, and elements that are read one by one
    BATCH_TEXT_BYTES_MAX = 65_536  # ids, names and descriptors of a batch, which the loop writes
    NUMBERS_MAX = 256  # of one array that are written: more of them orjson writes faster, 10,000 floats in a third of the time
    WRITTEN_BYTES_MAX = 1_048_576  # a whole text: nothing here holds the interpreter for more than a millisecond or two

cdef double SURELY_FP32 = 3.4e38
"""As `json_data`: numbers below it, and above its negative, are not too large for FP32."""

cdef bint writes_plus = False
"""`1e+16` and not `1e16`: versions of orjson differ in nothing else."""

cdef double[23] POWERS_OF_TEN
POWERS_OF_TEN[:] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
                    1e19, 1e20, 1e21, 1e22]

cdef int[15] NUMPY_TYPES
NUMPY_TYPES[:] = [-1, cnp.NPY_BOOL, cnp.NPY_UINT8, cnp.NPY_UINT16, cnp.NPY_UINT32, cnp.NPY_UINT64, cnp.NPY_INT8, cnp.NPY_INT16,
                  cnp.NPY_INT32, cnp.NPY_INT64, cnp.NPY_FLOAT16, cnp.NPY_FLOAT32, cnp.NPY_FLOAT64, cnp.NPY_OBJECT, -1]

cdef int[15] ITEM_SIZES
ITEM_SIZES[:] = [0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2]


# ---- Reading JSON

cdef struct Cursor:
    const char* at
    const char* end


cdef struct Text:
    const char* begin
    Py_ssize_t size


cdef inline void skip_space(Cursor* c) noexcept nogil:
    while c.at < c.end and (c.at[0] == b' ' or c.at[0] == b'\n' or c.at[0] == b'\t' or c.at[0] == b'\r'):
        c.at += 1


cdef inline bint take(Cursor* c, char wanted) noexcept nogil:
    """Take this character, and white space before it."""
    skip_space(c)
    if c.at < c.end and c.at[0] == wanted:
        c.at += 1
        return True
    return False


cdef inline bint take_text(Cursor* c, Text* text) noexcept nogil:
    """Take a string of ASCII characters without escapes."""
    cdef unsigned char letter
    if not take(c, b'"'):
        return False
    text.begin = c.at
    while c.at < c.end:
        letter = c.at[0]
        if letter == b'"':
            text.size = c.at - text.begin
            c.at += 1
            return True
        if letter < 0x20 or letter >= 0x80 or letter == b'\\':
            return False
        c.at += 1
    return False


cdef inline bint is_word(Text* text, const char* word, Py_ssize_t size) noexcept nogil:
    return text.size == size and memcmp(text.begin, word, size) == 0


cdef inline object as_str(Text* text):
    return PyUnicode_DecodeASCII(text.begin, text.size, NULL)


cdef bint take_literal(Cursor* c, const char* word, Py_ssize_t size) noexcept nogil:
    skip_space(c)
    if c.end - c.at >= size and memcmp(c.at, word, size) == 0:
        c.at += size
        return True
    return False


cdef inline bint take_digits(Cursor* c, uint64_t* value, bint* is_negative) noexcept nogil:
    """Take an integer as JSON has it, of at most DIGITS_MAX digits; not -0."""
    cdef const char* first
    skip_space(c)
    is_negative[0] = c.at < c.end and c.at[0] == b'-'
    if is_negative[0]:
        c.at += 1
    first = c.at
    value[0] = 0
    while c.at < c.end and b'0' <= c.at[0] <= b'9':
        value[0] = value[0] * 10 + <uint64_t>(c.at[0] - 48)
        c.at += 1
        if c.at - first > DIGITS_MAX:
            return False
    if c.at == first or (first[0] == b'0' and (c.at - first > 1 or is_negative[0])):
        return False
    return not (c.at < c.end and (c.at[0] == b'.' or c.at[0] == b'e' or c.at[0] == b'E'))


cdef inline bint take_size(Cursor* c, Py_ssize_t* value) noexcept nogil:
    """Take an integer of 0 to 2**31 - 1."""
    cdef uint64_t digits
    cdef bint is_negative
    if not take_digits(c, &digits, &is_negative) or is_negative or digits > 0x7FFFFFFF:
        return False
    value[0] = <Py_ssize_t>digits
    return True


cdef inline bint take_signed(Cursor* c, int64_t* value) noexcept nogil:
    """Take an integer of -2**63 + 1 to 2**63 - 1."""
    cdef uint64_t digits
    cdef bint is_negative
    if not take_digits(c, &digits, &is_negative) or digits >> 63:
        return False
    value[0] = -<int64_t>digits if is_negative else <int64_t>digits
    return True


cdef inline bint take_double(Cursor* c, double* value) noexcept nogil:
    """Take a number as JSON has it, and round it to the nearest double; not the integer -0, which is 0 to Python."""
    cdef const char* first
    cdef const char* begin
    cdef uint64_t digits = 0
    cdef int count = 0
    cdef int exponent = 0
    cdef int said = 0
    cdef bint is_negative, is_small, is_integer = True
    cdef double magnitude
    skip_space(c)
    first = c.at
    is_negative = c.at < c.end and c.at[0] == b'-'
    if is_negative:
        c.at += 1
    begin = c.at
    while c.at < c.end and b'0' <= c.at[0] <= b'9':
        if count < DIGITS_MAX:
            digits = digits * 10 + <uint64_t>(c.at[0] - 48)
        count += 1
        c.at += 1
        if count > 400:
            return False
    if c.at == begin or (begin[0] == b'0' and c.at - begin > 1):
        return False
    if c.at < c.end and c.at[0] == b'.':
        is_integer = False
        c.at += 1
        begin = c.at
        while c.at < c.end and b'0' <= c.at[0] <= b'9':
            if count < DIGITS_MAX:
                digits = digits * 10 + <uint64_t>(c.at[0] - 48)
            count += 1
            exponent -= 1
            c.at += 1
            if count > 400:
                return False
        if c.at == begin:
            return False
    if c.at < c.end and (c.at[0] == b'e' or c.at[0] == b'E'):
        is_integer = False
        c.at += 1
        is_small = c.at < c.end and c.at[0] == b'-'
        if c.at < c.end and (c.at[0] == b'-' or c.at[0] == b'+'):
            c.at += 1
        begin = c.at
        while c.at < c.end and b'0' <= c.at[0] <= b'9':
            said = said * 10 + (c.at[0] - 48)
            c.at += 1
            if c.at - begin > 4:
                return False
        if c.at == begin:
            return False
        exponent += -said if is_small else said
    if is_integer and (count > DIGITS_MAX or (is_negative and digits == 0)):
        return False
    if count <= DIGITS_MAX and digits <= (<uint64_t>1 << 53) and -22 <= exponent <= 22:
        # Both are exact as doubles, so that one operation rounds once.
        magnitude = <double>digits
        if exponent < 0:
            magnitude /= POWERS_OF_TEN[-exponent]
        else:
            magnitude *= POWERS_OF_TEN[exponent]
        value[0] = -magnitude if is_negative else magnitude
        return True
    return tpy_is_fine(from_chars(first, c.at, value[0]))


cdef inline bint in_bounds(uint64_t digits, bint is_negative, int number) noexcept nogil:
    """True if an integer is one of the data type."""
    cdef int bits
    if number <= UINT64:
        return not is_negative and (number == UINT64 or digits >> (ITEM_SIZES[number] * 8) == 0)
    bits = ITEM_SIZES[number] * 8 - 1
    return digits <= (<uint64_t>1 << bits) - (not is_negative)


cdef inline bint take_element(Cursor* c, int number, char* target) except -1:
    """Take one element of this data type, and put it at `target`."""
    cdef double real
    cdef uint64_t digits
    cdef int64_t value
    cdef bint is_negative
    cdef bytes element
    if number == FP32:
        if not take_double(c, &real) or not -SURELY_FP32 < real < SURELY_FP32:
            return False
        (<float*>target)[0] = <float>real
    elif number == FP64:
        if not take_double(c, &real):
            return False
        (<double*>target)[0] = real
    elif number == BOOL:
        if take_literal(c, b"true", 4):
            target[0] = 1
        elif take_literal(c, b"false", 5):
            target[0] = 0
        else:
            return False
    elif number == BYTES:
        element = take_bytes(c)
        if element is None:
            return False
        Py_INCREF(element)
        (<PyObject**>target)[0] = <PyObject*>element
    else:
        if not take_digits(c, &digits, &is_negative) or not in_bounds(digits, is_negative, number):
            return False
        value = <int64_t>(0 - digits) if is_negative else <int64_t>digits
        if ITEM_SIZES[number] == 8:
            (<int64_t*>target)[0] = value
        elif ITEM_SIZES[number] == 4:
            (<int32_t*>target)[0] = <int32_t>value
        elif ITEM_SIZES[number] == 2:
            (<int16_t*>target)[0] = <int16_t>value
        else:
            (<int8_t*>target)[0] = <int8_t>value
    return True


cdef bytes take_bytes(Cursor* c):
    """Take a string, and return it in UTF-8. None for one that is wrong, or has half a surrogate pair."""
    cdef const char* close
    cdef const char* letter
    cdef bint is_ascii = True
    cdef bint has_escapes = False
    cdef bytes text
    if not take(c, b'"'):
        return None
    letter = c.at
    close = <const char*>memchr(letter, b'"', c.end - letter)
    while True:
        if close == NULL:
            return None
        while letter < close and letter[0] != b'\\':
            if <unsigned char>letter[0] < 0x20:
                return None
            if <unsigned char>letter[0] >= 0x80:
                is_ascii = False
            letter += 1
        if letter == close:
            break
        has_escapes = True
        letter += 2  # what is escaped is looked at below; here it is no end
        if letter > close:
            close = <const char*>memchr(letter, b'"', c.end - letter)
    text = unescaped(c.at, close - c.at) if has_escapes else PyBytes_FromStringAndSize(c.at, close - c.at)
    c.at = close + 1
    if text is not None and not is_ascii:
        try:
            PyUnicode_DecodeUTF8(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), NULL)
        except UnicodeDecodeError:
            return None
    return text


cdef bytes unescaped(const char* at, Py_ssize_t size):
    """The text of a string without its escapes. None if one is wrong."""
    cdef bytes text = PyBytes_FromStringAndSize(NULL, size)
    cdef const char* end = at + size
    cdef char* begin = PyBytes_AS_STRING(text)
    cdef char* target = begin
    cdef uint32_t code, low
    cdef char letter
    while at < end:
        letter = at[0]
        at += 1
        if letter != b'\\':
            target[0] = letter
            target += 1
            continue
        letter = at[0]  # no string ends with a backslash
        at += 1
        if letter == b'u':
            if not take_hex(&at, end, &code):
                return None
            if 0xD800 <= code < 0xE000:
                if code >= 0xDC00 or end - at < 2 or at[0] != b'\\' or at[1] != b'u':
                    return None
                at += 2
                if not take_hex(&at, end, &low) or not 0xDC00 <= low < 0xE000:
                    return None
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            target += put_utf8(target, code)
            continue
        if letter == b'n':
            letter = b'\n'
        elif letter == b't':
            letter = b'\t'
        elif letter == b'r':
            letter = b'\r'
        elif letter == b'b':
            letter = b'\b'
        elif letter == b'f':
            letter = b'\f'
        elif letter != b'"' and letter != b'\\' and letter != b'/':
            return None
        target[0] = letter
        target += 1
    return PyBytes_FromStringAndSize(begin, target - begin)


cdef inline bint take_hex(const char** at, const char* end, uint32_t* code) noexcept nogil:
    """Take four hexadecimal digits."""
    cdef int index
    cdef char letter
    if end - at[0] < 4:
        return False
    code[0] = 0
    for index in range(4):
        letter = at[0][index]
        if b'0' <= letter <= b'9':
            code[0] = code[0] * 16 + <uint32_t>(letter - 48)
        elif b'a' <= letter <= b'f':
            code[0] = code[0] * 16 + <uint32_t>(letter - 87)
        elif b'A' <= letter <= b'F':
            code[0] = code[0] * 16 + <uint32_t>(letter - 55)
        else:
            return False
    at[0] += 4
    return True


cdef inline int put_utf8(char* target, uint32_t code) noexcept nogil:
    """Write a character, and return its bytes: at most as many as its escape has."""
    if code < 0x80:
        target[0] = <char>code
        return 1
    if code < 0x800:
        target[0] = <char>(0xC0 | code >> 6)
        target[1] = <char>(0x80 | code & 0x3F)
        return 2
    if code < 0x10000:
        target[0] = <char>(0xE0 | code >> 12)
        target[1] = <char>(0x80 | code >> 6 & 0x3F)
        target[2] = <char>(0x80 | code & 0x3F)
        return 3
    target[0] = <char>(0xF0 | code >> 18)
    target[1] = <char>(0x80 | code >> 12 & 0x3F)
    target[2] = <char>(0x80 | code >> 6 & 0x3F)
    target[3] = <char>(0x80 | code & 0x3F)
    return 4


cdef cnp.ndarray new_array(Py_ssize_t* shape, int rank, int number):
    cdef cnp.npy_intp[RANK_MAX] dims
    cdef int index
    for index in range(rank):
        dims[index] = shape[index]
    return cnp.PyArray_SimpleNew(rank, dims, NUMPY_TYPES[number])


cdef cnp.ndarray take_data(Cursor* c, int number, Py_ssize_t* shape, int rank, Py_ssize_t count):
    """Take `count` elements, nested or not. None unless it is so many of this data type."""
    cdef cnp.ndarray array
    cdef char* target
    cdef int size = sizeof(void*) if number == BYTES else ITEM_SIZES[number]
    cdef int depth = 1
    cdef Py_ssize_t found = 0
    if number == FP16 or NUMPY_TYPES[number] < 0 or not take(c, b'[') or count > (c.end - c.at) // 2 + 1:  # an element has a character at least, and one behind it
        return None
    array = new_array(shape, rank, number)
    target = <char*>cnp.PyArray_DATA(array)
    while True:
        while take(c, b'['):
            depth += 1
            if depth > DEPTH_MAX:
                return None
        if found == count or not take_element(c, number, target):
            return None
        target += size
        found += 1
        while take(c, b']'):
            depth -= 1
            if depth == 0:
                return array if found == count else None
        if not take(c, b','):
            return None


cdef bint take_shape(Cursor* c, Py_ssize_t* shape, int* rank, Py_ssize_t* count) noexcept nogil:
    """Take a shape of 1 to RANK_MAX dimensions, and of at least one element."""
    rank[0] = 0
    count[0] = 1
    if not take(c, b'['):
        return False
    while True:
        if rank[0] == RANK_MAX or not take_size(c, &shape[rank[0]]) or shape[rank[0]] == 0:
            return False
        if count[0] > 0x7FFFFFFF // shape[rank[0]]:
            return False
        count[0] *= shape[rank[0]]
        rank[0] += 1
        if take(c, b']'):
            return True
        if not take(c, b','):
            return False


cdef object take_input(Cursor* c, bytes body, Py_ssize_t* blob_at, dict datatypes, object make_tensor):
    """Take one object of `inputs`: a tensor, or None. Its data are the last of its members, or in the body from `blob_at` on."""
    cdef Text member, name, word
    cdef Py_ssize_t[RANK_MAX] shape
    cdef int rank = 0
    cdef int number
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t size
    cdef PyObject* known
    cdef tuple datatype
    cdef cnp.ndarray array = None
    name.begin = word.begin = NULL
    if not take(c, b'{'):
        return None
    while True:
        if not take_text(c, &member) or not take(c, b':'):
            return None
        if is_word(&member, b"name", 4):
            if name.begin != NULL or not take_text(c, &name):
                return None
        elif is_word(&member, b"datatype", 8):
            if word.begin != NULL or not take_text(c, &word):
                return None
        elif is_word(&member, b"shape", 5):
            if rank or not take_shape(c, shape, &rank, &count):
                return None
        else:
            break
        if not take(c, b','):
            return None
    if name.begin == NULL or word.begin == NULL or not rank:
        return None
    known = PyDict_GetItem(datatypes, PyBytes_FromStringAndSize(word.begin, word.size))
    if known == NULL:
        return None
    datatype = <tuple><object>known
    number = datatype[1]
    if is_word(&member, b"data", 4):
        array = take_data(c, number, shape, rank, count)
    elif is_word(&member, b"parameters", 10):
        if not (take(c, b'{') and take_text(c, &member) and is_word(&member, b"binary_data_size", 16) and take(c, b':')):
            return None
        if not take_size(c, &size) or not take(c, b'}') or size > PyBytes_GET_SIZE(body) - blob_at[0]:
            return None
        if (number == BYTES or number == BOOL) and size > TEXT_BYTES_MAX:
            return None  # they are looked at one by one, which Python does within its bounds
        if number == BYTES:
            array = take_strings(PyBytes_AS_STRING(body) + blob_at[0], size, shape, rank, count)
        elif size == count * ITEM_SIZES[number]:
            array = array_in(body, blob_at[0], number, shape, rank, count)
        blob_at[0] += size
    else:
        return None
    if array is None or not take(c, b'}'):
        return None
    return make_tensor(as_str(&name), datatype[0], array)


cdef cnp.ndarray array_in(bytes body, Py_ssize_t at, int number, Py_ssize_t* shape, int rank, Py_ssize_t count):
    """A read-only view of `count` numbers, which the body has. None for BF16, and for BOOL where a byte is neither 0 nor 1."""
    cdef cnp.npy_intp[RANK_MAX] dims
    cdef cnp.ndarray array
    cdef int index
    if NUMPY_TYPES[number] < 0 or number == BOOL and not are_bits(PyBytes_AS_STRING(body) + at, count):
        return None
    for index in range(rank):
        dims[index] = shape[index]
    array = cnp.PyArray_SimpleNewFromData(rank, dims, NUMPY_TYPES[number], PyBytes_AS_STRING(body) + at)
    cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)
    if (<uint64_t>cnp.PyArray_DATA(array)) % ITEM_SIZES[number]:
        cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_ALIGNED)
    cnp.set_array_base(array, body)
    return array


cdef bint are_bits(const char* source, Py_ssize_t count) noexcept nogil:
    """Whether each of these bytes is 0 or 1."""
    cdef Py_ssize_t index
    cdef unsigned char found = 0
    for index in range(count):
        found |= <unsigned char>source[index]
    return found <= 1


cdef object take_outputs(Cursor* c):
    """Take `outputs`: a tuple of (name, True if it is wanted as a blob), or None."""
    cdef Text member, name
    cdef list found = []
    cdef bint is_binary
    cdef object text
    if not take(c, b'['):
        return None
    while True:
        is_binary = False
        if not (take(c, b'{') and take_text(c, &member) and is_word(&member, b"name", 4) and take(c, b':')):
            return None
        if not take_text(c, &name):
            return None
        if take(c, b','):
            if not (take_text(c, &member) and is_word(&member, b"parameters", 10) and take(c, b':') and take(c, b'{')):
                return None
            if not (take_text(c, &member) and is_word(&member, b"binary_data", 11) and take(c, b':')):
                return None
            is_binary = take_literal(c, b"true", 4)
            if not is_binary and not take_literal(c, b"false", 5):
                return None
            if not take(c, b'}'):
                return None
        if not take(c, b'}'):
            return None
        text = as_str(&name)
        for other, _ in found:
            if other == text:
                return None
        found.append((text, is_binary))
        if take(c, b']'):
            return tuple(found)
        if len(found) == OBJECTS_MAX or not take(c, b','):
            return None


def read_infer(bytes body not None, Py_ssize_t header_length, dict datatypes not None, make_tensor):
    """The inference request in `body`, of which the first `header_length` bytes are JSON and the others blobs; None unless it is
    in the standard form: members `id`, `inputs`, `outputs` and `parameters`, at most once each; names without escapes; `data`
    last in an input.

    Returns (id, tensors, outputs, True if outputs that are not named are blobs, parameters); `outputs` is a tuple of (name, True
    for a blob), empty for all. Of `parameters` only `binary_data_output` is read, where there is nothing else; other texts are
    returned as they are, and may be no JSON. `datatypes` has (type, number) for each word in bytes; a tensor is
    `make_tensor(name, type, array)`.
    """
    cdef Cursor c
    cdef Text member, text
    cdef object identifier = ""
    cdef object outputs = ()
    cdef list tensors = None
    cdef object tensor
    cdef bint has_id = False, has_outputs = False, has_parameters = False, is_binary = False
    cdef bytes parameters = b""
    cdef Py_ssize_t blob_at = header_length
    if header_length > PyBytes_GET_SIZE(body):
        return None
    c.at = PyBytes_AS_STRING(body)
    c.end = c.at + header_length
    if not take(&c, b'{'):
        return None
    while True:
        if not take_text(&c, &member) or not take(&c, b':'):
            return None
        if is_word(&member, b"inputs", 6):
            if tensors is not None or not take(&c, b'['):
                return None
            tensors = []
            while True:
                tensor = take_input(&c, body, &blob_at, datatypes, make_tensor)
                if tensor is None:
                    return None
                for other in tensors:
                    if other.name == tensor.name:
                        return None
                tensors.append(tensor)
                if take(&c, b']'):
                    break
                if len(tensors) == OBJECTS_MAX or not take(&c, b','):
                    return None
        elif is_word(&member, b"id", 2):
            if has_id or not take_text(&c, &text):
                return None
            has_id = True
            identifier = as_str(&text)
        elif is_word(&member, b"outputs", 7):
            if has_outputs:
                return None
            has_outputs = True
            outputs = take_outputs(&c)
            if outputs is None:
                return None
        elif is_word(&member, b"parameters", 10):
            if has_parameters or not take_flat_object(&c, &text):
                return None
            has_parameters = True
            if not is_binary_output(&text, &is_binary):
                parameters = PyBytes_FromStringAndSize(text.begin, text.size)
        else:
            return None
        if take(&c, b'}'):
            break
        if not take(&c, b','):
            return None
    skip_space(&c)
    if c.at != c.end or tensors is None or blob_at != PyBytes_GET_SIZE(body):
        return None
    return identifier, tuple(tensors), outputs, is_binary, parameters


cdef bint take_flat_object(Cursor* c, Text* text) noexcept nogil:
    """Take what is in braces, if nothing in it is in braces or brackets. It may be no JSON."""
    if not take(c, b'{'):
        return False
    text.begin = c.at - 1
    while c.at < c.end:
        c.at += 1
        if c.at[-1] == b'"':
            while c.at < c.end and c.at[0] != b'"':
                c.at += 2 if c.at[0] == b'\\' else 1
            c.at += 1
        elif c.at[-1] == b'}':
            text.size = c.at - text.begin
            return True
        elif c.at[-1] == b'{' or c.at[-1] == b'[':
            return False
    return False


cdef bint is_binary_output(Text* text, bint* value) noexcept nogil:
    """Whether an object has the parameter `binary_data_output`, which is put into `value`, and nothing else."""
    cdef Cursor c
    cdef Text name
    c.at, c.end = text.begin, text.begin + text.size
    if not take(&c, b'{') or not take_text(&c, &name) or not is_word(&name, b"binary_data_output", 18) or not take(&c, b':'):
        return False
    value[0] = take_literal(&c, b"true", 4)
    return (value[0] or take_literal(&c, b"false", 5)) and take(&c, b'}')


# ---- The head of a request

cdef enum:
    HEAD_BYTES_MAX = 4096
    FIELDS_MAX = 64
    FIELD_NAME_MAX = 64
    LENGTH_DIGITS_MAX = 9

cdef uint8_t[256] TOKEN
"""For characters of a field's name, what they are in small letters; 0 for all others, so for most that a name may have."""
cdef int _letter
for _letter in range(256):
    TOKEN[_letter] = 0
for _letter in b"abcdefghijklmnopqrstuvwxyz0123456789-_":
    TOKEN[_letter] = _letter
for _letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ":
    TOKEN[_letter] = _letter + 32


cdef inline bint is_any_case(const char* text, Py_ssize_t size, const char* word, Py_ssize_t word_size) noexcept nogil:
    """Whether a text is this word, which is in small letters."""
    cdef Py_ssize_t index
    if size != word_size:
        return False
    for index in range(size):
        if TOKEN[<unsigned char>text[index]] != <unsigned char>word[index]:
            return False
    return True


def read_head(data, Py_ssize_t body_max):
    """The HTTP/1.1 request at the beginning of `data`; None unless that is its whole head, with no more than its body behind it,
    and in the standard form: POST or GET, a target without escapes, one Host, no field twice or empty, a body of at most
    `body_max` bytes by Content-Length, or none.

    Returns (method, target, headers, fields, True to keep the connection, length of the body, as much of it as there is);
    `headers` is a list of (name, value), `fields` has the same by name in small letters. What it takes, llhttp takes for the
    same; fields that say how a message goes on (Transfer-Encoding, Upgrade, Expect and others) are left to that.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return head_in(<const char*>view.buf, view.len, body_max)
    finally:
        PyBuffer_Release(&view)


cdef object head_in(const char* begin, Py_ssize_t size, Py_ssize_t body_max):
    cdef const char* at = begin
    cdef const char* end = begin + (size if size < HEAD_BYTES_MAX else HEAD_BYTES_MAX)
    cdef const char* name
    cdef const char* value
    cdef const char* last
    cdef Py_ssize_t name_size, value_size, index, length = 0
    cdef bint has_host = False, keep_alive = True
    cdef char[FIELD_NAME_MAX] small
    cdef bytes method, target, word, content
    cdef list headers = []
    cdef dict fields = {}
    if size > 5 and memcmp(at, b"POST ", 5) == 0:
        method = b"POST"
        at += 5
    elif size > 4 and memcmp(at, b"GET ", 4) == 0:
        method = b"GET"
        at += 4
    else:
        return None
    name = at
    if at == end or at[0] != b'/':
        return None
    while at < end and (TOKEN[<unsigned char>at[0]] or at[0] == b'/' or at[0] == b'.' or at[0] == b':' or at[0] == b'~'):
        at += 1
    target = PyBytes_FromStringAndSize(name, at - name)
    if end - at < 11 or memcmp(at, b" HTTP/1.1\r\n", 11):
        return None
    at += 11
    while True:
        if end - at < 2:
            return None
        if at[0] == b'\r' and at[1] == b'\n':
            at += 2
            break
        name = at
        while at < end and TOKEN[<unsigned char>at[0]] and at - name < FIELD_NAME_MAX:
            small[at - name] = TOKEN[<unsigned char>at[0]]
            at += 1
        name_size = at - name
        if not name_size or at == end or at[0] != b':':
            return None
        at += 1
        while at < end and at[0] == b' ':
            at += 1
        value = at
        while at < end and b' ' <= at[0] < 0x7F:
            at += 1
        last = at
        if end - at < 2 or at[0] != b'\r' or at[1] != b'\n':
            return None
        at += 2
        while last > value and last[-1] == b' ':
            last -= 1
        value_size = last - value
        if value_size == 0:
            return None
        word = PyBytes_FromStringAndSize(small, name_size)
        content = PyBytes_FromStringAndSize(value, value_size)
        if PyDict_GetItem(fields, word) != NULL or len(headers) == FIELDS_MAX:
            return None
        fields[word] = content
        if memcmp(name, small, name_size) == 0:
            headers.append((word, content))
        else:
            headers.append((PyBytes_FromStringAndSize(name, name_size), content))
        if name_size == 4 and memcmp(small, b"host", 4) == 0:
            has_host = True
        elif name_size == 14 and memcmp(small, b"content-length", 14) == 0:
            if value_size > LENGTH_DIGITS_MAX or (value[0] == b'0' and value_size > 1):
                return None
            for index in range(value_size):
                if not b'0' <= value[index] <= b'9':
                    return None
                length = length * 10 + (value[index] - 48)
        elif name_size == 10 and memcmp(small, b"connection", 10) == 0:
            if is_any_case(value, value_size, b"close", 5):
                keep_alive = False
            elif not is_any_case(value, value_size, b"keep-alive", 10):
                return None
        elif says_how_to_go_on(small, name_size):
            return None
    size -= at - begin
    if not has_host or length > body_max or size > length:
        return None
    return method, target, headers, fields, keep_alive, length, PyBytes_FromStringAndSize(at, size)


cdef inline bint says_how_to_go_on(const char* name, Py_ssize_t size) noexcept nogil:
    """Whether a field, whose name is in small letters, may change how this message or the connection is to be read."""
    return (
        size == 17 and memcmp(name, b"transfer-encoding", 17) == 0
        or size == 7 and memcmp(name, b"upgrade", 7) == 0
        or size == 6 and memcmp(name, b"expect", 6) == 0
        or size == 2 and memcmp(name, b"te", 2) == 0
        or size == 7 and memcmp(name, b"trailer", 7) == 0
        or size == 16 and memcmp(name, b"proxy-connection", 16) == 0
        or size == 14 and memcmp(name, b"http2-settings", 14) == 0
    )


# ---- HPACK

cdef enum:
    ENTRY_BYTES = 32  # HTTP/2's overhead for each field, and for each entry of a table
    ENTRIES_MAX = 256
    EXTENDED_BYTES_MAX = 3  # behind the first of an integer


cdef inline bint take_prefixed(Cursor* c, int bits, Py_ssize_t* value) noexcept nogil:
    """Take an integer whose first byte has it in its lower bits. False at the end, and for a long one."""
    cdef Py_ssize_t most = (1 << bits) - 1
    cdef int count = 0
    if c.at == c.end:
        return False
    value[0] = <unsigned char>c.at[0] & most
    c.at += 1
    if value[0] < most:
        return True
    while c.at < c.end and count < EXTENDED_BYTES_MAX:
        value[0] += (<Py_ssize_t>(<unsigned char>c.at[0] & 0x7F)) << (7 * count)
        count += 1
        c.at += 1
        if not <unsigned char>c.at[-1] & 0x80:
            return True
    return False


cdef bytes take_string(Cursor* c, const int16_t* tree, Py_ssize_t nodes):
    """Take a string literal. None for one that is wrong."""
    cdef bint is_huffman
    cdef Py_ssize_t size
    cdef const char* begin
    if c.at == c.end:
        return None
    is_huffman = (<unsigned char>c.at[0] & 0x80) != 0
    if not take_prefixed(c, 7, &size) or size > c.end - c.at:
        return None
    begin = c.at
    c.at += size
    return from_huffman(begin, size, tree, nodes) if is_huffman else PyBytes_FromStringAndSize(begin, size)


cdef bytes from_huffman(const char* source, Py_ssize_t size, const int16_t* tree, Py_ssize_t nodes):
    """The text in Huffman's code, whose shortest codes have 5 bits. None for one that is wrong."""
    cdef Buffer out = Buffer()
    cdef Py_ssize_t index
    cdef int bit, node = 0, depth = 0
    cdef bint is_padding = True
    out.need(size * 8 // 5 + 1)
    for index in range(size):
        for bit in range(7, -1, -1):
            if not (<unsigned char>source[index] >> bit) & 1:
                is_padding = False
            node = tree[2 * node + ((<unsigned char>source[index] >> bit) & 1)]
            depth += 1
            if node < 0:
                if node < -256:  # the end of the string, which is not to be there
                    return None
                out.at[0] = <char>(-1 - node)
                out.at += 1
                node, depth, is_padding = 0, 0, True
            elif node == 0 or node >= nodes:
                return None
    if depth > 7 or not is_padding:
        return None
    return out.taken()


def read_fields(bytes block not None, tuple static not None, dynamic, Py_ssize_t table_max, bytes huffman not None, Py_ssize_t list_max):
    """The fields in an HPACK block, and those of them that the table gets, in order; None for a block that begins with a new size
    of the table, has more than `list_max` bytes by HTTP/2's count, or is not to be read without more ado. `static` and `dynamic`
    are the tables, of (name, value), the latest entry first; `huffman` is the tree of Huffman's code: for each node two numbers
    of 16 bits, the node behind a 0 and behind a 1, or -1 - symbol."""
    cdef Cursor c
    cdef list entries = list(dynamic)
    cdef list fields = []
    cdef list added = []
    cdef Py_ssize_t kept = len(entries)
    cdef Py_ssize_t index, total = 0, table_size = 0
    cdef unsigned char first
    cdef const int16_t* tree = <const int16_t*>PyBytes_AS_STRING(huffman)
    cdef Py_ssize_t nodes = PyBytes_GET_SIZE(huffman) // 4
    cdef tuple entry
    cdef bytes name, value
    if kept > ENTRIES_MAX or not nodes:
        return None
    for entry in entries:
        table_size += size_of_field(entry)
    c.at = PyBytes_AS_STRING(block)
    c.end = c.at + PyBytes_GET_SIZE(block)
    while c.at < c.end:
        if len(fields) == ENTRIES_MAX:
            return None
        first = <unsigned char>c.at[0]
        if first & 0x80:
            if not take_prefixed(&c, 7, &index):
                return None
            entry = entry_at(static, added, entries, kept, index)
            if entry is None:
                return None
            fields.append((entry[0], entry[1]))
            total += size_of_field(entry)
            continue
        if first & 0xE0 == 0x20 or not take_prefixed(&c, 6 if first & 0x40 else 4, &index):
            return None
        if index:
            entry = entry_at(static, added, entries, kept, index)
            if entry is None:
                return None
            name = entry[0]
        else:
            name = take_string(&c, tree, nodes)
        if name is None:
            return None
        value = take_string(&c, tree, nodes)
        if value is None:
            return None
        entry = (name, value)
        fields.append(entry)
        total += size_of_field(entry)
        if first & 0x40:
            table_size += size_of_field(entry)
            while table_size > table_max:
                if not kept:
                    return None  # it would take the place of all others, and maybe its own
                kept -= 1
                table_size -= size_of_field(<tuple>entries[kept])
            added.append(entry)
    return None if total > list_max else (tuple(fields), added)


cdef inline Py_ssize_t size_of_field(tuple entry) except -1:
    return ENTRY_BYTES + len(<bytes>entry[0]) + len(<bytes>entry[1])


cdef inline tuple entry_at(tuple static, list added, list entries, Py_ssize_t kept, Py_ssize_t index):
    """The entry with this index, which begins with 1; None if there is none."""
    index -= 1
    if index < 0:
        return None
    if index < len(static):
        return static[index]
    index -= len(static)
    if index < len(added):
        return added[len(added) - 1 - index]
    index -= len(added)
    return entries[index] if index < kept else None


# ---- Writing

def write_numbers_like(bytes written not None):
    """Write numbers as `written`, which is what orjson makes of 1e16. Returns False for a form that is not known."""
    global writes_plus
    writes_plus = written == b"1e+16"
    return writes_plus or written == b"1e16"


cdef class Buffer:
    """Memory that grows while a text is written."""

    cdef bytearray memory
    cdef char* at
    cdef char* end
    cdef Py_ssize_t most
    cdef int tensors

    def __cinit__(self):
        self.most = WRITTEN_BYTES_MAX
        self.tensors = 0
        self.memory = bytearray(4096)
        self.rewind()

    cdef void rewind(self):
        self.at = <char*>self.memory
        self.end = self.at + len(self.memory)

    cdef int need(self, Py_ssize_t size) except -1:
        """Have room for `size` more bytes."""
        cdef Py_ssize_t used
        if self.end - self.at < size:
            used = self.used()
            self.memory.extend(bytes(max(size, len(self.memory))))
            self.at = <char*>self.memory + used
            self.end = <char*>self.memory + len(self.memory)
        return 0

    cdef inline void put(self, const char* text, Py_ssize_t size) noexcept:
        """There has to be room for it."""
        memcpy(self.at, text, size)
        self.at += size

    cdef inline Py_ssize_t used(self) noexcept:
        return self.at - <char*>self.memory

    cdef bytes taken(self):
        return PyBytes_FromStringAndSize(<char*>self.memory, self.used())


cdef bint put_text(Buffer out, object text) except -1:
    """Write a str in quotes. False where a character of it would have to be escaped, or is not ASCII."""
    cdef Py_ssize_t size
    cdef const char* begin
    if type(text) is not str:
        return False
    try:
        begin = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        return False
    return put_quoted(out, begin, size)


cdef bint put_quoted(Buffer out, const char* begin, Py_ssize_t size) except -1:
    cdef Py_ssize_t index
    cdef unsigned char letter
    cdef char* target
    if size > TEXT_BYTES_MAX or out.used() > out.most:
        return False
    out.need(size + 2)
    target = out.at
    target[0] = b'"'
    for index in range(size):
        letter = begin[index]
        if letter < 0x20 or letter >= 0x7F or letter == b'"' or letter == b'\\':
            return False
        target[index + 1] = letter
    target[size + 1] = b'"'
    out.at += size + 2
    return True


cdef bint put_element(Buffer out, const char* begin, Py_ssize_t size) except -1:
    """Write a text in quotes, with escapes where there have to be some. False if it is not UTF-8."""
    cdef Py_ssize_t index
    cdef Py_ssize_t more = 0
    cdef bint is_ascii = True
    cdef unsigned char letter
    cdef char* target
    if size > TEXT_BYTES_MAX or out.used() > out.most:
        return False
    for index in range(size):
        letter = begin[index]
        if letter >= 0x80:
            is_ascii = False
        elif letter < 0x20:
            more += 5
        elif letter == b'"' or letter == b'\\':
            more += 1
    if not is_ascii:
        try:
            PyUnicode_DecodeUTF8(begin, size, NULL)
        except UnicodeDecodeError:
            return False
    out.need(size + more + 2)
    target = out.at
    target[0] = b'"'
    target += 1
    if more == 0:
        memcpy(target, begin, size)
        target += size
    else:
        for index in range(size):
            letter = begin[index]
            if letter >= 0x20 and letter != b'"' and letter != b'\\':
                target[0] = letter
                target += 1
                continue
            target[0] = b'\\'
            if letter == b'\n':
                target[1] = b'n'
            elif letter == b'\t':
                target[1] = b't'
            elif letter == b'\r':
                target[1] = b'r'
            elif letter == b'\b':
                target[1] = b'b'
            elif letter == b'\f':
                target[1] = b'f'
            elif letter >= 0x20:
                target[1] = letter
            else:
                memcpy(target + 1, b"u00", 3)
                target[4] = 48 + (letter >> 4)
                target[5] = b"0123456789abcdef"[letter & 15]
                target += 4
            target += 2
    target[0] = b'"'
    out.at = target + 1
    return True


cdef inline void put_signed(Buffer out, int64_t value) noexcept:
    out.at = to_chars(out.at, out.at + INTEGER_CHARACTERS_MAX, value).ptr


cdef inline void put_unsigned(Buffer out, uint64_t value) noexcept:
    out.at = to_chars(out.at, out.at + INTEGER_CHARACTERS_MAX, value).ptr


cdef inline bint put_double(Buffer out, double value) noexcept:
    """Write the shortest digits that are read as this number, in the form of orjson; False for NaN and infinities."""
    cdef char[DOUBLE_CHARACTERS_MAX] text
    cdef char[DOUBLE_CHARACTERS_MAX] digits
    cdef char* at = out.at
    cdef char* end
    cdef char* letter
    cdef int count = 0
    cdef int exponent = 0
    cdef int point, index
    cdef bint is_small
    cdef int64_t whole
    if value - value != 0:
        return False
    if -1e15 < value < 1e15:
        whole = <int64_t>value
        if <double>whole == value and (whole != 0 or 1 / value > 0):
            out.at = to_chars(at, at + INTEGER_CHARACTERS_MAX, whole).ptr
            out.put(b".0", 2)
            return True
    if value < 0 or 1 / value < 0:
        at[0] = b'-'
        at += 1
        value = -value
    if value == 0:
        memcpy(at, b"0.0", 3)
        out.at = at + 3
        return True
    if 1e-4 <= value < 1e15:  # not a whole number, which is written above
        out.at = to_chars(at, at + DOUBLE_CHARACTERS_MAX, value, chars_format.fixed).ptr
        return True
    end = to_chars(text, text + DOUBLE_CHARACTERS_MAX, value, chars_format.scientific).ptr
    letter = text
    while letter[0] != b'e':
        if letter[0] != b'.':
            digits[count] = letter[0]
            count += 1
        letter += 1
    letter += 1
    is_small = letter[0] == b'-'
    letter += 1
    while letter < end:
        exponent = exponent * 10 + (letter[0] - 48)
        letter += 1
    if is_small:
        exponent = -exponent
    point = exponent + 1  # digits before the point
    if count <= point <= 16:
        memcpy(at, digits, count)
        memset(at + count, b'0', point - count)
        at += point
        at[0], at[1] = b'.', b'0'
        at += 2
    elif 0 < point <= 16:
        memcpy(at, digits, point)
        at[point] = b'.'
        memcpy(at + point + 1, digits + point, count - point)
        at += count + 1
    elif -5 < point <= 0:
        at[0], at[1] = b'0', b'.'
        memset(at + 2, b'0', -point)
        memcpy(at + 2 - point, digits, count)
        at += 2 - point + count
    else:
        at[0] = digits[0]
        at += 1
        if count > 1:
            at[0] = b'.'
            memcpy(at + 1, digits + 1, count - 1)
            at += count
        at[0] = b'e'
        if writes_plus and exponent > 0:
            at += 1
            at[0] = b'+'
        at = to_chars(at + 1, at + INTEGER_CHARACTERS_MAX, <int64_t>exponent).ptr
    out.at = at
    return True


cdef bint put_elements(Buffer out, cnp.ndarray array, int number, Py_ssize_t count) except -1:
    """Write the elements with commas between them. False for numbers where they cannot be read at once, too."""
    cdef const char* source = <const char*>cnp.PyArray_DATA(array)
    cdef int size = ITEM_SIZES[number]
    cdef Py_ssize_t index
    cdef object element
    if number == FP16 or (number != BYTES and count > NUMBERS_MAX) or not cnp.PyArray_ISALIGNED(array):
        return False
    if number == BYTES:
        for index in range(count):
            if (<PyObject**>source)[index] == NULL:
                return False
            element = <object>(<PyObject**>source)[index]
            if not PyBytes_CheckExact(element):
                return False
            if not put_element(out, PyBytes_AS_STRING(element), PyBytes_GET_SIZE(element)):
                return False
            out.need(1)
            out.put(b",", 1)
    else:
        out.need(count * (DOUBLE_CHARACTERS_MAX + 1))
        for index in range(count):
            if number == FP32:
                if not put_double(out, <double>(<const float*>source)[0]):
                    return False
            elif number == FP64:
                if not put_double(out, (<const double*>source)[0]):
                    return False
            elif number == BOOL:
                if source[0]:
                    out.put(b"true", 4)
                else:
                    out.put(b"false", 5)
            elif number == UINT8:
                put_unsigned(out, (<const uint8_t*>source)[0])
            elif number == UINT16:
                put_unsigned(out, (<const uint16_t*>source)[0])
            elif number == UINT32:
                put_unsigned(out, (<const uint32_t*>source)[0])
            elif number == UINT64:
                put_unsigned(out, (<const uint64_t*>source)[0])
            elif number == INT8:
                put_signed(out, (<const int8_t*>source)[0])
            elif number == INT16:
                put_signed(out, (<const int16_t*>source)[0])
            elif number == INT32:
                put_signed(out, (<const int32_t*>source)[0])
            elif number == INT64:
                put_signed(out, (<const int64_t*>source)[0])
            else:
                return False
            out.put(b",", 1)
            source += size
    if count:
        out.at -= 1
    return True


cdef inline cnp.ndarray plain_array(object array, int number):
    """The array if it is of this data type and its elements lie one behind the other, else None. Numbers of several bytes may
    begin anywhere, as those of a request's blob do."""
    if type(array) is not cnp.ndarray or not cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>array):
        return None
    if NUMPY_TYPES[number] < 0 or cnp.PyArray_TYPE(<cnp.ndarray>array) != NUMPY_TYPES[number]:
        return None
    if not cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>array):
        return None
    if number == BYTES and not cnp.PyArray_ISALIGNED(<cnp.ndarray>array):
        return None
    return <cnp.ndarray>array


cdef void put_shape(Buffer out, cnp.ndarray array):
    """There has to be room for it."""
    cdef int index
    out.put(b"[", 1)
    for index in range(cnp.PyArray_NDIM(array)):
        if index:
            out.put(b",", 1)
        put_signed(out, cnp.PyArray_DIM(array, index))
    out.put(b"]", 1)


def write_infer(
    identifier, model, version, outputs, dict choices not None, default, json, binary, Py_ssize_t elements_max, Py_ssize_t bytes_max
):
    """An answer without parameters, and the length of its JSON where blobs are behind that, else None. `choices` has for names
    of outputs, and `default` for the others, `json` or `binary`: whether it is in the JSON or a blob. None instead of all for
    another choice; for more than `elements_max` elements in the JSON, types that it does not have, and texts that are no UTF-8;
    and for blobs of more than `bytes_max` bytes together. `outputs` are Tensors."""
    cdef Buffer out = Buffer()
    cdef Buffer blobs = Buffer()
    cdef Py_ssize_t length, size
    try:
        if not put_infer(out, blobs, identifier, model, version, outputs, choices, default, json, binary, elements_max, bytes_max):
            return None
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    size = blobs.used()
    if size == 0:
        return out.taken(), None
    length = out.used()
    out.need(size)
    out.put(<const char*>blobs.memory, size)
    return out.taken(), length


cdef inline object choice_of(dict choices, object default, object name):
    cdef PyObject* found = PyDict_GetItem(choices, name) if type(name) is str else NULL
    return default if found == NULL else <object>found


cdef bint put_infer(
    Buffer out,
    Buffer blobs,
    object identifier,
    object model,
    object version,
    object outputs,
    dict choices,
    object default,
    object json,
    object binary,
    Py_ssize_t elements_max,
    Py_ssize_t bytes_max,
) except -1:
    """Write an answer's JSON, and its blobs. What is surely not to be written is not begun."""
    cdef object tensor, datatype, choice
    cdef tuple tensors = tuple(outputs)
    cdef list chosen = []
    cdef Py_ssize_t at = 0
    cdef cnp.ndarray array
    cdef int number
    cdef Py_ssize_t count, used, total = 0
    cdef bint is_first = True
    cdef bint is_blob
    for tensor in tensors:
        choice = choice_of(choices, default, tensor.name)
        number = tensor.datatype.number
        array = plain_array(tensor.array, number)
        if array is None or cnp.PyArray_NDIM(array) > RANK_MAX:
            return False
        if choice is json:
            elements_max -= cnp.PyArray_SIZE(array)
        elif choice is not binary:
            return False
        elif number != BYTES:
            total += cnp.PyArray_NBYTES(array)
        if elements_max < 0 or total > bytes_max:
            return False
        chosen.append((array, choice is binary))
    out.need(256)
    out.put(b"{", 1)
    if identifier:
        out.put(b'"id":', 5)
        if not put_text(out, identifier):
            return False
        out.need(256)
        out.put(b",", 1)
    out.put(b'"model_name":', 13)
    if not put_text(out, model):
        return False
    out.need(256)
    out.put(b',"model_version":"', 18)
    if type(version) is not int:
        return False
    put_signed(out, <int64_t>version)
    out.put(b'","outputs":[', 13)
    for tensor in tensors:
        datatype = tensor.datatype
        number = datatype.number
        array, is_blob = chosen[at]
        at += 1
        out.need(64)
        if not is_first:
            out.put(b",", 1)
        is_first = False
        out.put(b'{"name":', 8)
        if not put_text(out, tensor.name):
            return False
        out.need(64)
        out.put(b',"datatype":', 12)
        if not put_text(out, datatype._value_):
            return False
        out.need(128 + RANK_MAX * INTEGER_CHARACTERS_MAX)
        out.put(b',"shape":', 9)
        put_shape(out, array)
        if not is_blob:
            count = cnp.PyArray_SIZE(array)
            out.put(b',"data":[', 9)
            if not put_elements(out, array, number, count):
                return False
            out.need(8)
            out.put(b"]}", 2)
        else:
            used = blobs.used()
            if not put_raw(blobs, array, number, bytes_max):
                return False
            out.put(b',"parameters":{"binary_data_size":', 34)
            put_signed(out, blobs.used() - used)
            out.put(b"}}", 2)
    out.need(8)
    out.put(b"]}", 2)
    return True


# ---- Frames between server and worker

cdef enum:
    ALIGNMENT = 16
    PREFIX_BYTES = 24
    SEQUENCE_START = 1
    SEQUENCE_END = 2


cdef inline void put_u16(Buffer out, uint16_t value) noexcept:
    memcpy(out.at, &value, 2)  # as the processor has it: little endian, `codec.py` sees to it
    out.at += 2


cdef inline void put_u32(Buffer out, uint32_t value) noexcept:
    memcpy(out.at, &value, 4)
    out.at += 4


cdef inline void put_u64(Buffer out, uint64_t value) noexcept:
    memcpy(out.at, &value, 8)
    out.at += 8


cdef bint put_raw(Buffer data, cnp.ndarray array, int number, Py_ssize_t data_max) except -1:
    """Write the elements in their binary form. False if there is no room for them in `data_max` bytes."""
    cdef Py_ssize_t size, index
    cdef const char* source
    cdef object element
    cdef Py_ssize_t used = data.used()
    if number != BYTES:
        size = cnp.PyArray_NBYTES(array)
        if used + size > data_max:
            return False
        data.need(size)
        data.put(<const char*>cnp.PyArray_DATA(array), size)
        return True
    source = <const char*>cnp.PyArray_DATA(array)
    for index in range(cnp.PyArray_SIZE(array)):
        if (<PyObject**>source)[index] == NULL:
            return False
        element = <object>(<PyObject**>source)[index]
        if not PyBytes_CheckExact(element):
            return False
        size = PyBytes_GET_SIZE(element)
        used += size + 4
        if used > data_max:
            return False
        data.need(size + 4)
        put_u32(data, <uint32_t>size)
        data.put(PyBytes_AS_STRING(element), size)
    return True


cdef bint put_inputs(Buffer out, Buffer data, dict inputs, Py_ssize_t data_max) except -1:
    """Write the descriptors of a request's tensors, and their elements into the data area."""
    cdef object name, tensor
    cdef cnp.ndarray array
    cdef int number
    cdef Py_ssize_t offset, size, padding
    cdef bint is_first = True
    out.need(1)
    out.put(b"[", 1)
    for name, tensor in inputs.items():
        number = tensor.datatype.number
        array = plain_array(tensor.array, number)
        out.tensors += 1
        if array is None or cnp.PyArray_NDIM(array) > RANK_MAX or out.tensors > OBJECTS_MAX:
            return False
        offset = data.used()
        if not put_raw(data, array, number, data_max):
            return False
        size = data.used() - offset
        padding = -size & (ALIGNMENT - 1)
        data.need(padding)
        memset(data.at, 0, padding)
        data.at += padding
        out.need(2)
        if not is_first:
            out.put(b",", 1)
        is_first = False
        out.put(b"[", 1)
        if not put_text(out, name):
            return False
        out.need(128 + RANK_MAX * INTEGER_CHARACTERS_MAX)
        out.put(b",", 1)
        put_signed(out, number)
        out.put(b",", 1)
        put_shape(out, array)
        out.put(b",0,", 3)
        put_signed(out, offset)
        out.put(b",", 1)
        put_signed(out, size)
        out.put(b"]", 1)
    out.need(1)
    out.put(b"]", 1)
    return True


cdef bint put_request(Buffer out, Buffer data, object request, Py_ssize_t data_max) except -1:
    """Write a request that has no parameters, and is not observed."""
    cdef object wanted, name, inputs, timeout_us, sequence
    cdef bint is_first = True
    if request.record is not None or request.parameters:
        return False
    out.need(1)
    out.put(b"[", 1)
    if not put_text(out, request.id):
        return False
    out.need(64)
    sequence = request.sequence
    if sequence is None:
        out.put(b",0,0,", 5)
    elif not put_sequence(out, sequence):
        return False
    timeout_us = request.timeout_us
    if type(timeout_us) is not int or timeout_us < 0 or timeout_us >> 63:
        return False
    put_signed(out, <int64_t>timeout_us)
    out.put(b',"",', 4)
    wanted = request.requested_outputs
    if wanted:
        out.put(b"[", 1)
        if type(wanted) is not tuple:
            return False
        for name in <tuple>wanted:
            out.need(1)
            if not is_first:
                out.put(b",", 1)
            is_first = False
            if not put_text(out, name):
                return False
        out.need(2)
        out.put(b"],", 2)
    else:
        out.put(b"null,", 5)
    inputs = request.inputs
    if type(inputs) is not dict or not put_inputs(out, data, <dict>inputs, data_max):
        return False
    out.need(8)
    out.put(b",0,null]", 8)
    return True


cdef bint put_sequence(Buffer out, object sequence) except -1:
    """Write a place in a sequence: its id and flags, with commas around them."""
    cdef object identifier = sequence.correlation_id
    out.put(b",", 1)
    if type(identifier) is int:
        put_unsigned(out, <uint64_t>identifier)
    elif not put_text(out, identifier):
        return False
    out.need(64)
    out.put(b",", 1)
    put_unsigned(out, (SEQUENCE_START if sequence.start else 0) | (SEQUENCE_END if sequence.end else 0))
    out.put(b",", 1)
    return True


def write_batches(magic, kind, version, stream, batches, data_max):
    """The frame of kind EXECUTE of these batches, each a sequence of requests; None unless all tensors are in host memory and
    have at most `data_max` bytes together, texts need no escapes, and no request has parameters or an observer."""
    try:
        return batches_frame(magic, kind, version, stream, batches, data_max)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


cdef object batches_frame(int magic, int kind, int version, uint64_t stream, object batches, Py_ssize_t data_max):
    cdef Buffer out = Buffer()
    cdef Buffer data = Buffer()
    cdef object batch, request
    cdef bint is_first_batch = True, is_first
    cdef Py_ssize_t header, padding
    cdef char* prefix
    out.most = BATCH_TEXT_BYTES_MAX
    out.at += PREFIX_BYTES
    out.put(b"[", 1)
    for batch in batches:
        out.need(2)
        if not is_first_batch:
            out.put(b",", 1)
        is_first_batch = False
        out.put(b"[", 1)
        is_first = True
        for request in batch:
            out.need(1)
            if not is_first:
                out.put(b",", 1)
            is_first = False
            if not put_request(out, data, request, data_max):
                return None
        out.need(1)
        out.put(b"]", 1)
    out.need(1 + ALIGNMENT)
    out.put(b"]", 1)
    header = out.used()
    padding = -header & (ALIGNMENT - 1)
    memset(out.at, b' ', padding)
    out.at += padding
    header += padding - PREFIX_BYTES
    padding = data.used()
    out.need(padding)
    out.put(<char*>data.memory, padding)
    prefix = out.at
    out.at = <char*>out.memory
    put_u16(out, magic)
    out.at[0], out.at[1] = kind, version
    out.at += 2
    put_u32(out, 0)
    put_u32(out, <uint32_t>header)
    put_u32(out, <uint32_t>padding)
    put_u64(out, stream)
    out.at = prefix
    return out.taken()


cdef cnp.ndarray take_strings(const char* source, Py_ssize_t size, Py_ssize_t* shape, int rank, Py_ssize_t count):
    """An array of `count` elements of BYTES in their binary form. None unless they fill `size` bytes."""
    cdef cnp.ndarray array
    cdef PyObject** target
    cdef uint32_t length
    cdef Py_ssize_t index
    cdef bytes element
    if count > size // 4:
        return None
    array = new_array(shape, rank, BYTES)
    target = <PyObject**>cnp.PyArray_DATA(array)
    for index in range(count):
        if size < 4:
            return None
        memcpy(&length, source, 4)
        source += 4
        size -= 4
        if length > <uint64_t>size:
            return None
        element = PyBytes_FromStringAndSize(source, length)
        Py_INCREF(element)
        target[index] = <PyObject*>element
        source += length
        size -= length
    return array if size == 0 else None


cdef object take_output(Cursor* c, object data, Py_buffer* area, tuple datatypes, object make_tensor, Py_ssize_t* texts_max):
    """Take a descriptor: the tensor, a view of the data area; or None."""
    cdef Text name
    cdef Py_ssize_t[RANK_MAX] shape
    cdef cnp.npy_intp[RANK_MAX] dims
    cdef Py_ssize_t number, where, offset, size, count
    cdef int rank, index
    cdef cnp.ndarray array
    if not take(c, b'[') or not take_text(c, &name) or not take(c, b',') or not take_size(c, &number) or not take(c, b','):
        return None
    if not take_shape(c, shape, &rank, &count) or not take(c, b',') or not take_size(c, &where) or where != 0:
        return None
    if not take(c, b',') or not take_size(c, &offset) or not take(c, b',') or not take_size(c, &size) or not take(c, b']'):
        return None
    if number > BYTES or offset % ALIGNMENT or offset + size > area.len or NUMPY_TYPES[number] < 0:
        return None
    if number == BYTES:
        texts_max[0] -= size
        if texts_max[0] < 0:
            return None
        array = take_strings(<const char*>area.buf + offset, size, shape, rank, count)
        if array is None:
            return None
    else:
        if size != count * ITEM_SIZES[number] or (<uint64_t>area.buf + <uint64_t>offset) % ITEM_SIZES[number]:
            return None  # a frame behind one whose data area was not padded is not aligned: no worker of ours sends it
        for index in range(rank):
            dims[index] = shape[index]
        array = cnp.PyArray_SimpleNewFromData(rank, dims, NUMPY_TYPES[number], <char*>area.buf + offset)
        if area.readonly:
            cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)
        cnp.set_array_base(array, data)
    return make_tensor(as_str(&name), datatypes[number], array)


cdef object take_answer(Cursor* c, object data, Py_buffer* area, tuple datatypes, object make_tensor, Py_ssize_t* texts_max):
    """Take the answer to a request: its tensors, or None."""
    cdef Text text
    cdef int64_t code
    cdef list outputs = []
    cdef object tensor
    if not take(c, b'[') or not take_signed(c, &code) or code != -1 or not take(c, b','):
        return None
    if not take_text(c, &text) or text.size or not take(c, b',') or not take_text(c, &text) or text.size:
        return None
    if not take(c, b',') or not take(c, b'['):
        return None
    if not take(c, b']'):
        while True:
            tensor = take_output(c, data, area, datatypes, make_tensor, texts_max)
            if tensor is None:
                return None
            outputs.append(tensor)
            if take(c, b']'):
                break
            if len(outputs) == OBJECTS_MAX or not take(c, b','):
                return None
    return outputs if take(c, b']') else None


def read_result(header, data, tuple datatypes not None, make_tensor, make_result, Py_ssize_t texts_max):
    """The times and results in a message of kind RESULT: ((ns, ns, ns), [result, ...]). None unless each request has an answer,
    without an error or parameters, of tensors in the data area, whose texts have at most `texts_max` bytes together. A tensor is
    `make_tensor(name, datatypes[number], array)`, a result `make_result(tensors)`."""
    cdef Py_buffer text
    cdef Py_buffer area
    PyObject_GetBuffer(header, &text, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(data, &area, PyBUF_SIMPLE)
        try:
            return take_result(&text, data, &area, datatypes, make_tensor, make_result, texts_max)
        finally:
            PyBuffer_Release(&area)
    finally:
        PyBuffer_Release(&text)


cdef object take_result(
    Py_buffer* text, object data, Py_buffer* area, tuple datatypes, object make_tensor, object make_result, Py_ssize_t texts_max
):
    cdef Cursor c
    cdef int64_t[3] times
    cdef int index
    cdef list results = []
    cdef object outputs
    c.at = <const char*>text.buf
    c.end = c.at + text.len
    if not take(&c, b'['):
        return None
    for index in range(3):
        if not take(&c, b',' if index else b'[') or not take_signed(&c, &times[index]):
            return None
    if not take(&c, b']') or not take(&c, b',') or not take(&c, b'['):
        return None
    while True:
        outputs = take_answer(&c, data, area, datatypes, make_tensor, &texts_max)
        if outputs is None:
            return None
        results.append(make_result(outputs))
        if take(&c, b']'):
            break
        if not take(&c, b','):
            return None
    if not take(&c, b']'):
        return None
    skip_space(&c)
    if c.at != c.end:
        return None
    return (times[0], times[1], times[2]), results


# ---- ModelInfer of gRPC

cdef enum:
    PROTO_DIGITS_MAX = 4  # bytes of a length or a size
    PROTO_TEXT = 2  # wire type of what has a length


cdef inline bint take_varint(Cursor* c, Py_ssize_t* value) noexcept nogil:
    """Take an integer of 0 to 2**28 - 1."""
    cdef int shift = 0
    cdef unsigned char octet
    value[0] = 0
    while c.at < c.end and shift < 7 * PROTO_DIGITS_MAX:
        octet = c.at[0]
        c.at += 1
        value[0] |= <Py_ssize_t>(octet & 0x7F) << shift
        if octet < 0x80:
            return True
        shift += 7
    return False


cdef inline bint take_field(Cursor* c, int* number, Text* content) noexcept nogil:
    """Take a field with a length, whose number is below 16."""
    cdef unsigned char tag
    if c.at >= c.end:
        return False
    tag = c.at[0]
    c.at += 1
    if tag >= 0x80 or tag & 7 != PROTO_TEXT or not take_varint(c, &content.size) or content.size > c.end - c.at:
        return False
    number[0] = tag >> 3
    content.begin = c.at
    c.at += content.size
    return True


cdef inline bint is_ascii(Text* text) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(text.size):
        if <unsigned char>text.begin[index] >= 0x80:
            return False
    return True


cdef struct ProtoInput:
    Text name
    Text datatype
    Py_ssize_t[RANK_MAX] shape
    int rank
    Py_ssize_t count


cdef bint take_proto_input(Text* message, ProtoInput* found) noexcept nogil:
    """Take an InferInputTensor that has a name, a datatype and a shape of at least one element, and nothing else."""
    cdef Cursor c, sizes
    cdef Text content
    cdef int number
    found.name.begin = found.datatype.begin = NULL
    found.rank = 0
    found.count = 1
    c.at = message.begin
    c.end = message.begin + message.size
    while c.at < c.end:
        if not take_field(&c, &number, &content):
            return False
        if number == 1 and found.name.begin == NULL and is_ascii(&content):
            found.name = content
        elif number == 2 and found.datatype.begin == NULL:
            found.datatype = content
        elif number == 3 and not found.rank and content.size:
            sizes.at = content.begin
            sizes.end = content.begin + content.size
            while sizes.at < sizes.end:
                if found.rank == RANK_MAX or not take_varint(&sizes, &found.shape[found.rank]) or found.shape[found.rank] == 0:
                    return False
                if found.count > 0x7FFFFFFF // found.shape[found.rank]:
                    return False
                found.count *= found.shape[found.rank]
                found.rank += 1
        else:
            return False
    return found.name.begin != NULL and found.datatype.begin != NULL and found.rank > 0


cdef cnp.ndarray proto_array(Text* raw, ProtoInput* given, int number):
    """The elements of a raw tensor, copied: there are few. None unless they fit the shape."""
    cdef cnp.ndarray array
    if NUMPY_TYPES[number] < 0:
        return None
    if number == BYTES:
        return take_strings(raw.begin, raw.size, given.shape, given.rank, given.count)
    if raw.size != given.count * ITEM_SIZES[number] or number == BOOL and not are_bits(raw.begin, raw.size):
        return None
    array = new_array(given.shape, given.rank, number)
    memcpy(cnp.PyArray_DATA(array), raw.begin, raw.size)
    cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)
    return array


def read_model_infer(message, dict datatypes not None, make_tensor):
    """The ModelInferRequest in `message`, which supports the buffer protocol; None unless it is in the standard form: texts in
    ASCII and at most once each, inputs of a name, a datatype and a shape, with one raw tensor for each, outputs of a name.

    Returns (model, version, id, tensors, names of outputs, parameters). Those are the fields as they are, a message of nothing
    else, which may be wrong. `datatypes` and `make_tensor` as for `read_infer`.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
    try:
        return model_infer_in(&view, datatypes, make_tensor)
    finally:
        PyBuffer_Release(&view)


cdef object model_infer_in(Py_buffer* view, dict datatypes, object make_tensor):
    cdef Cursor c, inner
    cdef Text content
    cdef Text[4] texts
    cdef Text[OBJECTS_MAX] raws
    cdef ProtoInput[OBJECTS_MAX] inputs
    cdef int number
    cdef int input_count = 0
    cdef int raw_count = 0
    cdef int index
    cdef list names = []
    cdef list tensors = []
    cdef list parameters = []
    cdef const char* begin
    cdef PyObject* known
    cdef tuple datatype
    cdef cnp.ndarray array
    for index in range(4):
        texts[index].begin = NULL
        texts[index].size = 0
    c.at = <const char*>view.buf
    c.end = c.at + view.len
    while c.at < c.end:
        begin = c.at
        if not take_field(&c, &number, &content):
            return None
        if 1 <= number <= 3:
            if texts[number].begin != NULL or not is_ascii(&content):
                return None
            texts[number] = content
        elif number == 4:
            if len(parameters) == OBJECTS_MAX:
                return None
            parameters.append(PyBytes_FromStringAndSize(begin, c.at - begin))
        elif number == 5:
            if input_count == OBJECTS_MAX or not take_proto_input(&content, &inputs[input_count]):
                return None
            input_count += 1
        elif number == 6:
            inner.at = content.begin
            inner.end = content.begin + content.size
            if len(names) == OBJECTS_MAX or not take_field(&inner, &number, &content):
                return None
            if number != 1 or inner.at != inner.end or not is_ascii(&content):
                return None
            name = as_str(&content)
            if name in names:
                return None
            names.append(name)
        elif number == 7:
            if raw_count == OBJECTS_MAX:
                return None
            raws[raw_count] = content
            raw_count += 1
        else:
            return None
    if texts[1].begin == NULL or input_count == 0 or raw_count != input_count:
        return None
    for index in range(input_count):
        known = PyDict_GetItem(datatypes, PyBytes_FromStringAndSize(inputs[index].datatype.begin, inputs[index].datatype.size))
        if known == NULL:
            return None
        datatype = <tuple><object>known
        array = proto_array(&raws[index], &inputs[index], datatype[1])
        if array is None:
            return None
        tensor = make_tensor(as_str(&inputs[index].name), datatype[0], array)
        for other in tensors:
            if other.name == tensor.name:
                return None
        tensors.append(tensor)
    return as_str(&texts[1]), as_str(&texts[2]), as_str(&texts[3]), tuple(tensors), tuple(names), b"".join(parameters)


cdef inline int varint_size(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline void put_varint(Buffer out, uint64_t value) noexcept:
    """There has to be room for it: 10 bytes."""
    while value >= 0x80:
        out.at[0] = <char>(value & 0x7F | 0x80)
        out.at += 1
        value >>= 7
    out.at[0] = <char>value
    out.at += 1


cdef bint put_proto_text(Buffer out, int number, object text) except -1:
    """Write a field with a str, unless that is empty. Raises UnicodeEncodeError for half a surrogate pair."""
    cdef Py_ssize_t size
    cdef const char* begin
    if type(text) is not str:
        return False
    begin = PyUnicode_AsUTF8AndSize(text, &size)
    if size > TEXT_BYTES_MAX:
        return False
    if size:
        out.need(size + 11)
        out.at[0] = <char>(number << 3 | PROTO_TEXT)
        out.at += 1
        put_varint(out, size)
        out.put(begin, size)
    return True


cdef Py_ssize_t raw_size(cnp.ndarray array, int number) except -1:
    """The bytes of the elements in their binary form; more than any message may have if one cannot be written."""
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t index
    cdef PyObject** source
    cdef object element
    if number != BYTES:
        return cnp.PyArray_NBYTES(array)
    source = <PyObject**>cnp.PyArray_DATA(array)
    for index in range(cnp.PyArray_SIZE(array)):
        if source[index] == NULL:
            return WRITTEN_BYTES_MAX
        element = <object>source[index]
        if not PyBytes_CheckExact(element):
            return WRITTEN_BYTES_MAX
        size += PyBytes_GET_SIZE(element) + 4
        if size >= WRITTEN_BYTES_MAX:
            return WRITTEN_BYTES_MAX
    return size


def write_model_infer(identifier, model, version, outputs, bytes_max, bytes parameters not None):
    """A ModelInferResponse with these fields of parameters, whose outputs are all raw; None unless it has at most `bytes_max`
    bytes, which are below WRITTEN_BYTES_MAX. `outputs` are Tensors."""
    try:
        return model_infer_text(identifier, model, version, outputs, bytes_max, parameters)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


cdef object model_infer_text(
    object identifier, object model, object version, object outputs, Py_ssize_t bytes_max, bytes parameters
):
    cdef Buffer out = Buffer()
    cdef Buffer inner = Buffer()
    cdef object tensor, datatype
    cdef cnp.ndarray array
    cdef int number, index
    cdef Py_ssize_t size, total = 0
    cdef list arrays = []
    if type(version) is not int or len(outputs) > OBJECTS_MAX:
        return None
    if not put_proto_text(out, 1, model) or not put_proto_text(out, 2, str(version)) or not put_proto_text(out, 3, identifier):
        return None
    out.need(PyBytes_GET_SIZE(parameters))
    out.put(PyBytes_AS_STRING(parameters), PyBytes_GET_SIZE(parameters))
    for tensor in outputs:
        datatype = tensor.datatype
        number = datatype.number
        array = plain_array(tensor.array, number)
        if array is None or cnp.PyArray_NDIM(array) > RANK_MAX:
            return None
        size = raw_size(array, number)
        total += size
        if total > bytes_max:
            return None
        arrays.append((array, number, size))
        inner.rewind()
        if not put_proto_text(inner, 1, tensor.name) or not put_proto_text(inner, 2, datatype._value_):
            return None
        if cnp.PyArray_NDIM(array):
            size = 0
            for index in range(cnp.PyArray_NDIM(array)):
                size += varint_size(cnp.PyArray_DIM(array, index))
            inner.need(2 + size)
            inner.at[0] = <char>(3 << 3 | PROTO_TEXT)
            inner.at += 1
            put_varint(inner, size)
            for index in range(cnp.PyArray_NDIM(array)):
                put_varint(inner, cnp.PyArray_DIM(array, index))
        size = inner.used()
        out.need(size + 11)
        out.at[0] = <char>(5 << 3 | PROTO_TEXT)
        out.at += 1
        put_varint(out, size)
        out.put(<char*>inner.memory, size)
    for array, number, size in arrays:
        out.need(size + 11)
        out.at[0] = <char>(6 << 3 | PROTO_TEXT)
        out.at += 1
        put_varint(out, size)
        if not put_raw(out, array, number, out.used() + size):
            return None
    return out.taken() if out.used() <= bytes_max else None
