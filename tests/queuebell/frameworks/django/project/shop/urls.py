"""The shop's pages."""

from functools import partial

from django.db import transaction
from django.http import HttpResponse
from django.urls import path

from shop.models import Order
from shop.tasks import charge, charge_async


def order(request, number):
    """Take an order in a transaction, with the task that charges it; `?fail` fails after both."""
    with transaction.atomic():
        Order.objects.create(number=number)
        if "within" in request.GET:
            charge.enqueue(number)
        else:
            transaction.on_commit(partial(charge.enqueue, number))
        if "fail" in request.GET:
            raise ValueError("after all")
    return HttpResponse(status=202)


async def order_async(request, number):
    """Have an order charged, by a view that runs on the event loop."""
    await charge_async.aenqueue(number)
    return HttpResponse(status=202)


urlpatterns = [path("orders/<int:number>/", order), path("async/<int:number>/", order_async)]
