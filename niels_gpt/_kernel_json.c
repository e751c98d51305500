/* JSON, of tools and of the arguments of calls.
 *
 *   json_text  plain data -> JSON as `json.dumps(..., ensure_ascii=False)` writes it, or None
 *   is_json    whether a text is certainly JSON
 *
 * Both handle the common cases only; Python handles all others (`niels_gpt/renderers/conversation.py`). Nothing here
 * runs Python code or creates a container before the result is complete, so borrowed references stay valid throughout.
 */

#include "_kernel.h"
#include <stdio.h>
#include <string.h>

#define DEEPEST 64 /* levels of recursion; Python handles deeper values, and raises RecursionError in time */

/* ------------------------------------------------------------------ json_text */

typedef struct {
    char *data; /* owned, from PyMem_Malloc */
    Py_ssize_t used, room;
} Buffer;

/* The `put...` functions append to the buffer and return 1; 0 means that Python must write the value. */

static int put(Buffer *out, const char *text, Py_ssize_t size)
{
    if (size > out->room - out->used) {
        if (size > PY_SSIZE_T_MAX / 4 || out->room > PY_SSIZE_T_MAX / 4) /* then the sum below cannot overflow */
            return 0;
        const Py_ssize_t room = 2 * out->room + size;
        char *larger = PyMem_Realloc(out->data, room);
        if (larger == NULL)
            return 0;
        out->data = larger;
        out->room = room;
    }
    memcpy(out->data + out->used, text, size);
    out->used += size;
    return 1;
}

/* The bytes that JSON escapes: 0x00 to 0x1F, the quote and the backslash. */
static const char NEEDS_ESCAPE[256] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    ['"'] = 1,
    ['\\'] = 1,
};

static int put_text(Buffer *out, PyObject *text)
{
    static const char short_escapes[] = "\bb\ff\nn\rr\tt\"\"\\\\"; /* pairs: a character, and its escape's letter */
    Py_ssize_t size, done = 0;
    const char *utf8 = PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (utf8 == NULL || !put(out, "\"", 1))
        return 0;
    for (Py_ssize_t at = 0; at < size; at++) {
        const unsigned char byte = (unsigned char)utf8[at];
        if (!NEEDS_ESCAPE[byte])
            continue;
        char escape[8];
        const char *letter = short_escapes;
        while (*letter && (unsigned char)*letter != byte)
            letter += 2;
        if (byte && *letter)
            snprintf(escape, sizeof(escape), "\\%c", letter[1]);
        else
            snprintf(escape, sizeof(escape), "\\u%04x", byte);
        if (!put(out, utf8 + done, at - done) || !put(out, escape, (Py_ssize_t)strlen(escape)))
            return 0;
        done = at + 1;
    }
    return put(out, utf8 + done, size - done) && put(out, "\"", 1);
}

static int put_number(Buffer *out, PyObject *value)
{
    char digits[32];
    int overflow = 0;
    if (PyFloat_CheckExact(value)) {
        const double number = PyFloat_AsDouble(value);
        if (number - number != 0.0) /* infinity and NaN, which `json` writes in its own way */
            return 0;
        char *shown = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        const int done = shown != NULL && put(out, shown, (Py_ssize_t)strlen(shown));
        PyMem_Free(shown);
        return done;
    }
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) /* more than 64 bits */
        return 0;
    snprintf(digits, sizeof(digits), "%lld", number);
    return put(out, digits, (Py_ssize_t)strlen(digits));
}

static int put_value(Buffer *out, PyObject *value, int depth)
{
    if (PyUnicode_CheckExact(value))
        return put_text(out, value);
    if (value == Py_None)
        return put(out, "null", 4);
    if (PyBool_Check(value))
        return value == Py_True ? put(out, "true", 4) : put(out, "false", 5);
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value))
        return put_number(out, value);
    if (depth == DEEPEST)
        return 0;
    if (PyList_CheckExact(value)) {
        if (!put(out, "[", 1))
            return 0;
        for (Py_ssize_t at = 0; at < PyList_Size(value); at++) {
            PyObject *held = PyList_GetItem(value, at);
            if (held == NULL || (at && !put(out, ", ", 2)) || !put_value(out, held, depth + 1))
                return 0;
        }
        return put(out, "]", 1);
    }
    if (!PyDict_CheckExact(value) || !put(out, "{", 1))
        return 0;
    PyObject *key, *held;
    for (Py_ssize_t at = 0, first = 1; PyDict_Next(value, &at, &key, &held); first = 0) {
        if ((!first && !put(out, ", ", 2)) || !put_text(out, key) || !put(out, ": ", 2) ||
            !put_value(out, held, depth + 1))
            return 0;
    }
    return put(out, "}", 1);
}

const char json_text_doc[] = "json_text(value)\n--\n\n"
                             "JSON of plain data, not escaped, in the order given; None where Python must write it.\n\n"
                             "See `niels_gpt.renderers.conversation.to_json`.";

PyObject *json_text(PyObject *Py_UNUSED(module), PyObject *value)
{
    Buffer out = {PyMem_Malloc(1024), 0, 1024};
    if (out.data == NULL)
        return PyErr_NoMemory();
    const int done = put_value(&out, value, 0);
    PyObject *text;
    if (done)
        text = PyUnicode_DecodeUTF8(out.data, out.used, "strict");
    else {
        PyErr_Clear(); /* a lone surrogate, or not enough memory: Python reports it */
        text = Py_None;
        Py_INCREF(text);
    }
    PyMem_Free(out.data);
    return text;
}

/* ------------------------------------------------------------------ is_json */

/* A position in UTF-8 that is borrowed from a string. The functions below advance it; 0 means: not certainly JSON. */
typedef struct {
    const char *at, *end;
} Reader;

static void skip_space(Reader *in)
{
    while (in->at < in->end && strchr(" \t\n\r", *in->at) != NULL && *in->at)
        in->at++;
}

/* Advance over one character if it is the next. */
static int took(Reader *in, char wanted)
{
    if (in->at == in->end || *in->at != wanted)
        return 0;
    in->at++;
    return 1;
}

static int read_digits(Reader *in)
{
    const char *first = in->at;
    while (in->at < in->end && *in->at >= '0' && *in->at <= '9')
        in->at++;
    return in->at > first && in->at - first < 4000; /* Python refuses integers of more than 4300 digits */
}

static int read_number(Reader *in)
{
    took(in, '-');
    if (!took(in, '0') && !read_digits(in))
        return 0;
    if (took(in, '.') && !read_digits(in))
        return 0;
    if (in->at < in->end && (*in->at == 'e' || *in->at == 'E')) {
        in->at++;
        if (!took(in, '+'))
            took(in, '-');
        return read_digits(in);
    }
    return 1;
}

/* A text after its opening quote. Texts with an escape \u are left to Python: it may spell half of a surrogate pair. */
static int read_text(Reader *in)
{
    while (in->at < in->end) {
        const unsigned char byte = (unsigned char)*in->at++;
        if (byte == '"')
            return 1;
        if (byte < 0x20)
            return 0;
        if (byte == '\\') {
            if (in->at == in->end || *in->at == 0 || strchr("\"\\/bfnrt", *in->at) == NULL)
                return 0;
            in->at++;
        }
    }
    return 0;
}

static int read_word(Reader *in, const char *word)
{
    for (; *word; word++) {
        if (!took(in, *word))
            return 0;
    }
    return 1;
}

/* A value, with white space before it but not after it. */
static int read_value(Reader *in, int depth)
{
    skip_space(in);
    if (in->at == in->end || depth > DEEPEST)
        return 0;
    switch (*in->at) {
    case '"':
        in->at++;
        return read_text(in);
    case 't':
        return read_word(in, "true");
    case 'f':
        return read_word(in, "false");
    case 'n':
        return read_word(in, "null");
    case '[':
    case '{':
        break;
    default:
        return read_number(in);
    }
    const int object = *in->at++ == '{';
    const char close = object ? '}' : ']';
    skip_space(in);
    if (took(in, close))
        return 1;
    do {
        if (object) {
            skip_space(in);
            if (!took(in, '"') || !read_text(in))
                return 0;
            skip_space(in);
            if (!took(in, ':'))
                return 0;
        }
        if (!read_value(in, depth + 1))
            return 0;
        skip_space(in);
    } while (took(in, ','));
    return took(in, close);
}

const char is_json_doc[] = "is_json(text)\n--\n\n"
                           "True: the text is JSON without escapes \\u. False: let Python read it.\n\n"
                           "See `niels_gpt.renderers.conversation.Call.json`.";

PyObject *is_json(PyObject *Py_UNUSED(module), PyObject *text)
{
    Py_ssize_t size;
    const char *utf8 = PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (utf8 == NULL) {
        PyErr_Clear();
        return PyBool_FromLong(0);
    }
    Reader in = {utf8, utf8 + size};
    int good = read_value(&in, 0);
    skip_space(&in);
    return PyBool_FromLong(good && in.at == in.end);
}
