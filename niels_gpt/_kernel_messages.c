/* Reading conversations: copies of messages that need no repair, and roles.
 *
 *   copied       messages -> copies of those that consist of plain texts and calls, None for each other one
 *   plain_roles  the roles of messages that need neither repair nor further checks, calls and results included, or None
 *
 * Both handle the common cases only, in which they read each field once. Everything else is handled in Python
 * (`niels_gpt/messages.py`, `niels_gpt/renderers/conversation.py`), so that rules for unusual messages exist once.
 *
 * Ownership: creating a container may start a garbage collection, which can run any Python code. So `copied` copies a
 * container first and checks the copy, to which only this code holds references, so that references that are borrowed
 * from the copy stay valid. `plain_roles` creates no container while it checks.
 */

#include "_kernel.h"

/* ------------------------------------------------------------------ texts */

/* Whether a value is a `str` without half of a surrogate pair. The UTF-8 that Python computes for this stays cached in
 * the string, where `layout` uses it. Runs no Python code. */
static int is_text(PyObject *value)
{
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(value))
        return 0;
    if (PyUnicode_AsUTF8AndSize(value, &size) == NULL) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* Whether a `str` is this text. */
static int equals(PyObject *key, const char *text)
{
    return PyUnicode_CompareWithASCIIString(key, text) == 0;
}

/* ------------------------------------------------------------------ lists */

/* From an item (borrowed) and a context to a new reference; NULL, with or without an error, if there is none. */
typedef PyObject *(*Replacement)(PyObject *item, PyObject *context);

/* A new list with the replacement of each item; NULL, with or without an error, at the first item that has none. */
static PyObject *with_items_replaced(PyObject *list, Replacement replacement, PyObject *context)
{
    PyObject *result = PyList_GetSlice(list, 0, PyList_Size(list)); /* holds the items while Python code may run */
    for (Py_ssize_t at = 0; result != NULL && at < PyList_Size(result); at++) {
        PyObject *item = PyList_GetItem(result, at), *found = item ? replacement(item, context) : NULL;
        if (found == NULL || PyList_SetItem(result, at, found) < 0) { /* takes the reference to `found` */
            Py_DECREF(result);
            return NULL;
        }
    }
    return result;
}

/* ------------------------------------------------------------------ copied */

/* Whether arguments are an object whose values are texts, numbers and truth values. */
static int has_plain_arguments(PyObject *arguments)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(arguments, &at, &key, &value)) {
        const int number = PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value);
        if (!is_text(key) || !(number || is_text(value)))
            return 0;
    }
    return 1;
}

/* Replace the dictionary under `name` in a dictionary by a copy. Returns 1, 0 if there is no dictionary, -1 for an
 * error. `copy` becomes a borrowed reference, which `outer` keeps alive. */
static int copy_inner(PyObject *outer, const char *name, PyObject **copy)
{
    PyObject *inner = PyDict_GetItemString(outer, name); /* borrowed; all keys are `str`, so no Python code runs */
    if (inner == NULL || !PyDict_CheckExact(inner))
        return 0;
    *copy = PyDict_Copy(inner);
    if (*copy == NULL)
        return -1;
    const int failed = PyDict_SetItemString(outer, name, *copy);
    Py_DECREF(*copy);
    return failed ? -1 : 1;
}

/* Whether all keys are exactly `str`: comparing others could run Python code. */
static int has_keys_of_text(PyObject *dictionary)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dictionary, &at, &key, &value)) {
        if (!PyUnicode_CheckExact(key))
            return 0;
    }
    return 1;
}

/* Whether a function is {"name": text, "arguments": text or plain object}. Runs no Python code. */
static int is_plain_function(PyObject *function)
{
    if (PyDict_Size(function) != 2 || !has_keys_of_text(function))
        return 0;
    PyObject *name = PyDict_GetItemString(function, "name"), *arguments = PyDict_GetItemString(function, "arguments");
    return name != NULL && arguments != NULL && is_text(name) &&
           (is_text(arguments) || (PyDict_CheckExact(arguments) && has_plain_arguments(arguments)));
}

/* Check a copy of a function, {"name": text, "arguments": text or object}, and copy its arguments too. Returns 1, 0 if
 * it is anything else, -1 for an error. */
static int check_function(PyObject *function)
{
    if (PyDict_Size(function) != 2 || !has_keys_of_text(function))
        return 0;
    PyObject *name = PyDict_GetItemString(function, "name"), *arguments = PyDict_GetItemString(function, "arguments");
    if (name == NULL || arguments == NULL || !is_text(name))
        return 0;
    if (is_text(arguments))
        return 1;
    const int found = copy_inner(function, "arguments", &arguments);
    return found == 1 ? has_plain_arguments(arguments) : found;
}

/* Check a copy of a call, {"function": ..., "id": text, "type": text}, and copy its function too. Returns as
 * `check_function` does. */
static int check_call(PyObject *call)
{
    PyObject *key, *value, *function;
    Py_ssize_t at = 0;
    if (!has_keys_of_text(call))
        return 0;
    const int found = copy_inner(call, "function", &function);
    if (found != 1)
        return found;
    while (PyDict_Next(call, &at, &key, &value)) {
        if (!equals(key, "function") && !((equals(key, "id") || equals(key, "type")) && is_text(value)))
            return 0;
    }
    return check_function(function);
}

/* A copy of a call; NULL, with or without an error, if it needs a closer look. */
static PyObject *copy_of_call(PyObject *call, PyObject *Py_UNUSED(context))
{
    PyObject *copy = PyDict_CheckExact(call) ? PyDict_Copy(call) : NULL;
    if (copy != NULL && check_call(copy) != 1) {
        Py_DECREF(copy);
        return NULL;
    }
    return copy;
}

/* What the fields of a message contain. */
enum { OTHER, TEXT, CALLS, TRAIN, WEIGHT };

/* What a field contains if the message needs no repair; OTHER for a key that is not known here. Called for every field
 * of every message: the length of the key leaves at most two spellings to compare. */
static int kind_of_field(PyObject *key)
{
    switch (PyUnicode_CheckExact(key) ? PyUnicode_GetLength(key) : 0) {
    case 4:
        return equals(key, "role") || equals(key, "name") ? TEXT : OTHER;
    case 5:
        return equals(key, "train") ? TRAIN : OTHER;
    case 6:
        return equals(key, "weight") ? WEIGHT : OTHER;
    case 7:
        return equals(key, "content") ? TEXT : OTHER;
    case 10:
        return equals(key, "tool_calls") ? CALLS : OTHER;
    case 12:
        return equals(key, "tool_call_id") ? TEXT : OTHER;
    case 17:
        return equals(key, "reasoning_content") ? TEXT : OTHER;
    default:
        return OTHER;
    }
}

/* A copy of a message; NULL, with or without an error, if it needs a closer look. */
static PyObject *copy_of_message(PyObject *message)
{
    PyObject *key, *value, *calls = NULL;
    Py_ssize_t at = 0;
    PyObject *copy = PyDict_CheckExact(message) ? PyDict_Copy(message) : NULL;
    if (copy == NULL)
        return NULL;
    while (PyDict_Next(copy, &at, &key, &value)) {
        const int kind = kind_of_field(key);
        if (kind == CALLS && PyList_CheckExact(value))
            calls = value; /* borrowed; `copy` keeps it alive */
        else if (!(kind == TEXT && is_text(value)) && !(kind == TRAIN && PyBool_Check(value)) &&
                 !(kind == WEIGHT && PyFloat_CheckExact(value)))
            goto failed;
    }
    if (PyDict_GetItemString(copy, "role") == NULL || PyDict_GetItemString(copy, "content") == NULL)
        goto failed;
    if (calls != NULL) {
        calls = with_items_replaced(calls, copy_of_call, NULL);
        const int stored = calls != NULL && PyDict_SetItemString(copy, "tool_calls", calls) == 0;
        Py_XDECREF(calls);
        if (!stored)
            goto failed;
    }
    return copy;
failed:
    Py_DECREF(copy);
    return NULL;
}

/* A copy of a message, or None if it needs a closer look; NULL for an interrupt only. Any other error means the same as
 * None: Python reads the message again and raises it. */
static PyObject *copy_or_none(PyObject *message, PyObject *Py_UNUSED(context))
{
    PyObject *copy = copy_of_message(message);
    if (copy != NULL || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)))
        return copy;
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

const char copied_doc[] = "copied(messages)\n--\n\n"
                          "Copies of the messages of a list, None for each with anything but texts and plain calls.\n\n"
                          "See `niels_gpt.messages.normalise`.";

PyObject *copied(PyObject *Py_UNUSED(module), PyObject *messages)
{
    if (!PyList_CheckExact(messages)) {
        PyErr_SetString(PyExc_TypeError, "messages must be a list");
        return NULL;
    }
    return with_items_replaced(messages, copy_or_none, NULL);
}

/* ------------------------------------------------------------------ plain_roles */

static int is_one_of(PyObject *role, PyObject *allowed)
{
    for (Py_ssize_t at = 0; at < PyTuple_Size(allowed); at++) {
        PyObject *one = PyTuple_GetItem(allowed, at);
        if (one == role || (PyUnicode_CheckExact(one) && PyUnicode_Compare(one, role) == 0))
            return 1;
    }
    return 0;
}

/* Whether a value is a list of calls as `copied` takes them; unlike there, nothing is copied. Runs no Python code. */
static int has_plain_calls(PyObject *calls)
{
    PyObject *key, *value;
    for (Py_ssize_t number = 0; number < PyList_Size(calls); number++) {
        PyObject *call = PyList_GetItem(calls, number);
        Py_ssize_t at = 0;
        if (!PyDict_CheckExact(call) || !has_keys_of_text(call))
            return 0;
        PyObject *function = PyDict_GetItemString(call, "function");
        if (function == NULL || !PyDict_CheckExact(function) || !is_plain_function(function))
            return 0;
        while (PyDict_Next(call, &at, &key, &value)) {
            if (value != function && !((equals(key, "id") || equals(key, "type")) && is_text(value)))
                return 0;
        }
    }
    return 1;
}

/* Whether a result with this id (NULL: it has none) answers one of these calls (NULL: there are none). All are plain. */
static int answers_one_of(PyObject *calls, PyObject *id)
{
    for (Py_ssize_t number = 0; calls != NULL && number < PyList_Size(calls); number++) {
        PyObject *called = PyDict_GetItemString(PyList_GetItem(calls, number), "id");
        if (id == NULL || called == NULL || PyUnicode_Compare(called, id) == 0 || equals(called, ""))
            return 1;
    }
    return 0;
}

/* The role of a message in the plain form of `copied` that has a place in the conversation; a new reference, or NULL
 * without an error. Runs no Python code.
 *
 * Args: waiting: the calls that may be answered by this message, NULL for none; becomes those that the next may answer.
 */
static PyObject *plain_role(PyObject *message, PyObject *allowed, PyObject **waiting)
{
    PyObject *key, *value, *role = NULL, *calls = NULL, *id = NULL;
    Py_ssize_t at = 0;
    int content = 0;
    if (!PyDict_CheckExact(message))
        return NULL;
    while (PyDict_Next(message, &at, &key, &value)) {
        const int kind = kind_of_field(key);
        if (kind == CALLS && PyList_CheckExact(value))
            calls = value;
        else if (!(kind == TEXT && is_text(value)) && !(kind == TRAIN && PyBool_Check(value)) &&
                 !(kind == WEIGHT && PyFloat_CheckExact(value)))
            return NULL;
        if (kind != TEXT)
            continue;
        if (equals(key, "role"))
            role = value;
        else if (equals(key, "tool_call_id"))
            id = value;
        content |= equals(key, "content");
    }
    if (role == NULL || !content || !is_one_of(role, allowed) || (calls != NULL && !has_plain_calls(calls)))
        return NULL;
    if (equals(role, "tool"))
        return calls == NULL && answers_one_of(*waiting, id) ? Py_NewRef(role) : NULL;
    if (calls != NULL && !equals(role, "assistant"))
        return NULL;
    *waiting = calls;
    return Py_NewRef(role);
}

const char plain_roles_doc[] = "plain_roles(messages, allowed)\n--\n\n"
                               "The roles of messages that need neither repair nor further checks; None for others.\n\n"
                               "See `niels_gpt.renderers.conversation.ConversationView`.";

PyObject *plain_roles(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *messages, *allowed;
    if (!PyArg_ParseTuple(args, "O!O!:plain_roles", &PyList_Type, &messages, &PyTuple_Type, &allowed))
        return NULL;
    if (PyList_Size(messages) == 0)
        Py_RETURN_NONE;
    PyObject *held = PyList_GetSlice(messages, 0, PyList_Size(messages)); /* `waiting` is borrowed from a message */
    PyObject *waiting = NULL, *roles = held ? PyList_New(PyList_Size(held)) : NULL;
    for (Py_ssize_t at = 0; roles != NULL && at < PyList_Size(held); at++) {
        PyObject *role = plain_role(PyList_GetItem(held, at), allowed, &waiting);
        if (role == NULL) {
            Py_DECREF(roles);
            roles = Py_NewRef(Py_None);
            break;
        }
        PyList_SetItem(roles, at, role); /* takes the reference to `role` */
    }
    Py_XDECREF(held);
    return roles;
}
