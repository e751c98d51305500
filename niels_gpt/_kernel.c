/* The native kernel: the loops over pieces and tokens.
 *
 *   _kernel_layout.c     concatenates the pieces of many strings        (tokenizer/fast_path.py)
 *   _kernel_attribute.c  proves ids and counts the tokens of each piece (tokenizer/fast_path.py)
 *
 * For each function there is one in numpy, which is used where the kernel was not built and is the reference in the
 * tests: the ids and counts of `encode` are equal. `niels_gpt/kernel.py` chooses.
 *
 * Rules for this code:
 *   - Every length is checked before a loop relies on it; no caller can make a function read or write outside of a
 *     buffer. Sums of sizes are checked for overflow before they are computed.
 *   - Results are new objects. Nothing is stored between calls.
 *   - A borrowed reference is used only where no Python code can run in between. Python code can run whenever a
 *     container is created (the garbage collector), an object is called, or an unknown mapping is read.
 *   - An error leaves all references balanced: functions have one exit that releases what they own.
 * tests/fuzz_kernel.py runs all functions on hostile input under the address and undefined-behaviour sanitizers.
 */

#include "_kernel.h"
#include <stdint.h>

PyObject *bytes_of_size(Py_ssize_t count, Py_ssize_t width)
{
    if (count > PY_SSIZE_T_MAX / width) /* the product would overflow */
        return PyErr_NoMemory();
    return PyBytes_FromStringAndSize(NULL, count * width);
}

/* ------------------------------------------------------------------ encode */

PyDoc_STRVAR(encode_doc,
             "encode(texts, facts, controls_of, lengths, encode, unsafe_class)\n--\n\n"
             "`layout`, the ids that `encode` returns for all the bytes, and `attribute`.\n\n"
             "Returns `(layout, ids, attribution)`. If a string has `unsafe_class` or a higher class, or one of several\n"
             "strings does not begin with a control token, nothing is encoded: `(layout, None, None)`.\n\n"
             "See `niels_gpt.tokenizer.fast_path.encode_with_kernel`.");

static PyObject *encode(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *texts, *facts, *controls_of, *lengths, *encoder; /* borrowed from `args` */
    PyObject *ids = NULL, *attribution = NULL, *result = NULL; /* owned */
    int unsafe_class, worst_class, all_start_with_control;
    if (!PyArg_ParseTuple(args, "O!O!OOOi:encode", &PyList_Type, &texts, &PyList_Type, &facts, &controls_of, &lengths,
                          &encoder, &unsafe_class))
        return NULL;
    PyObject *batch = make_layout(texts, facts, controls_of, &worst_class, &all_start_with_control);
    if (batch == NULL)
        return NULL;
    PyObject *const pieces = PyTuple_GetItem(batch, LAYOUT_PIECES);
    const int is_one_string = PyBytes_Size(pieces) == sizeof(int64_t); /* one int64 for each string */
    if (worst_class >= unsafe_class || !(all_start_with_control || is_one_string)) {
        result = PyTuple_Pack(3, batch, Py_None, Py_None);
        goto done;
    }
    ids = PyObject_CallFunctionObjArgs(encoder, PyTuple_GetItem(batch, LAYOUT_DATA), NULL);
    if (ids == NULL)
        goto done;
    PyObject *const arguments[ARRAYS] = {
        [IDS] = ids,
        [LENGTHS] = lengths,
        [EDGES] = PyTuple_GetItem(batch, LAYOUT_EDGES),
        [PIECES] = pieces,
        [CONTROL_AT] = PyTuple_GetItem(batch, LAYOUT_CONTROL_AT),
        [CONTROL_IDS] = PyTuple_GetItem(batch, LAYOUT_CONTROL_IDS),
    };
    attribution = make_attribution(arguments);
    if (attribution != NULL)
        result = PyTuple_Pack(3, batch, ids, attribution);
done:
    Py_DECREF(batch);
    Py_XDECREF(ids);
    Py_XDECREF(attribution);
    return result;
}

/* ------------------------------------------------------------------ module */

static PyMethodDef methods[] = {
    {"layout", layout, METH_VARARGS, layout_doc},
    {"attribute", attribute, METH_VARARGS, attribute_doc},
    {"encode", encode, METH_VARARGS, encode_doc},
    {NULL, NULL, 0, NULL},
};

#define VERSION 6 /* the same as in niels_gpt/kernel.py; both are increased when the interface of a function changes */

static int set_version(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, set_version}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "niels_gpt._kernel", .m_doc = "Encoding conversations in C.",
    .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&definition);
}
