// The header is C++, too: with every warning, and with its initialisers.
#include "railstore.h"

int main() {
	rs_error err = RS_ERROR_INIT;
	rs_session_options so = RS_SESSION_OPTIONS_INIT;
	rs_call_options co = RS_CALL_OPTIONS_INIT;
	rs_read_options ro = RS_READ_OPTIONS_INIT;
	rs_put_options po = RS_PUT_OPTIONS_INIT;
	rs_leased l = RS_LEASED_INIT;
	rs_read_item i = RS_READ_ITEM_INIT;
	rs_session s = 0;
	so.recipe = "/nonexistent.cue";
	int status = rs_session_open(&so, &s, &err);
	bool good = status == RS_USAGE && err.message != nullptr && s == 0 && co.size == sizeof co && ro.size == sizeof ro && po.size == sizeof po &&
		l.size == sizeof l && i.size == sizeof i;
	rs_error_clear(&err);
	return good ? 0 : 1;
}
