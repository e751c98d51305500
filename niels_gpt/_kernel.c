/* The native kernel: the loops over messages, pieces and tokens.
 *
 *   _kernel_messages.c   messages are copied and checked
 *   _kernel_json.c       JSON is written and recognised
 *   _kernel_layout.c     pieces are laid end to end
 *   _kernel_attribute.c  ids are proven
 *
 * `niels_gpt/kernel.py` chooses between these and the functions in Python and numpy that do the same, which are the
 * reference in the tests.
 *
 * Only the limited API of Python 3.11 is used, so one build serves 3.11 and later. Nothing is kept between calls.
 * Every length is checked before a loop relies on it; callers cannot make these functions read outside of a buffer.
 * Results are new objects, so nothing that a caller holds is ever written to. tests/fuzz_kernel.py runs all of them on
 * hostile input under the sanitizers.
 */

#include "_kernel.h"
#include <stdint.h>

PyObject *bytes_of_size(Py_ssize_t count, Py_ssize_t width)
{
    if (count > PY_SSIZE_T_MAX / width)
        return PyErr_NoMemory();
    return PyBytes_FromStringAndSize(NULL, count * width);
}

/* ------------------------------------------------------------------ encode */

PyDoc_STRVAR(encode_doc,
             "encode(texts, facts, frames, lengths, backend, doubtful)\n--\n\n"
             "`layout`, the ids that `backend` gives for all the bytes, and `attribute`.\n\n"
             "Returns `(laid, ids, found)`. Where a string's kind is `doubtful` or worse, or one of several strings does\n"
             "not begin with a control token, nothing is encoded: `(laid, None, None)`.");

static PyObject *encode(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *texts, *facts, *frames, *lengths, *backend, *found = NULL, *result = NULL;
    int doubtful, worst, led;
    if (!PyArg_ParseTuple(args, "O!O!OOOi:encode", &PyList_Type, &texts, &PyList_Type, &facts, &frames, &lengths,
                          &backend, &doubtful))
        return NULL;
    PyObject *laid = laid_out(texts, facts, frames, &worst, &led);
    if (laid == NULL)
        return NULL;
    PyObject *const counts = PyTuple_GetItem(laid, 3);
    if (worst >= doubtful || !(led || PyBytes_Size(counts) == sizeof(int64_t))) {
        result = PyTuple_Pack(3, laid, Py_None, Py_None);
        Py_DECREF(laid);
        return result;
    }
    PyObject *ids = PyObject_CallFunctionObjArgs(backend, PyTuple_GetItem(laid, 0), NULL);
    if (ids != NULL) {
        PyObject *const given[ARRAYS] = {
            ids, lengths, PyTuple_GetItem(laid, 1), counts, PyTuple_GetItem(laid, 4), PyTuple_GetItem(laid, 5),
        };
        found = attributed(given);
    }
    if (found != NULL)
        result = PyTuple_Pack(3, laid, ids, found);
    Py_DECREF(laid);
    Py_XDECREF(ids);
    Py_XDECREF(found);
    return result;
}

/* ------------------------------------------------------------------ module */

static PyMethodDef methods[] = {
    {"layout", layout, METH_VARARGS, layout_doc},
    {"attribute", attribute, METH_VARARGS, attribute_doc},
    {"encode", encode, METH_VARARGS, encode_doc},
    {"copied", copied, METH_O, copied_doc},
    {"plain_roles", plain_roles, METH_VARARGS, plain_roles_doc},
    {"json_text", json_text, METH_O, json_text_doc},
    {"is_json", is_json, METH_O, is_json_doc},
    {NULL, NULL, 0, NULL},
};

#define VERSION 2 /* as in niels_gpt/kernel.py; both count up when a function here changes */

static int filled(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, filled}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "niels_gpt._kernel", .m_doc = "Reading and encoding conversations, in C.",
    .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&definition);
}
